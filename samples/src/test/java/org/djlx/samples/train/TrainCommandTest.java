// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.train;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Stream;
import org.djlx.collectives.launch.Launch;
import org.djlx.samples.Main;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(200)
@Tag("slow")
class TrainCommandTest extends TrainCommandCase {

    private static List<String> words(Object... args) {
        return Stream.of(args).map(Object::toString).toList();
    }

    @Test
    void learnsTheTextOnAnyNumberOfRanks() {
        List<Float> one = null;
        for (int[] ranks : new int[][] {{1, 1}, {2, 1}, {1, 2}, {2, 2}}) {
            String output =
                    output(
                            0,
                            with(
                                    train(40),
                                    "--data-parallel",
                                    ranks[0],
                                    "--tensor-parallel",
                                    ranks[1]));
            List<Float> losses = losses(output);
            assertEquals(11, losses.size(), output);
            assertTrue(losses.get(10) < 0.1f && losses.get(0) > 2, output);
            assertTrue(output.contains("quick brown fox jumps over the lazy dog. The"), output);
            one = one == null ? losses : one;
            for (int i = 0; i < losses.size(); i++) {
                assertEquals(one.get(i), losses.get(i), 0.005f, output);
            }
        }
    }

    /** {@code generate} reads the saved model with another number of ranks. */
    @Test
    void generatesTextOfTheTrainedModel() {
        Path one = folder.resolve("one");
        Path two = folder.resolve("two");
        String output = output(0, with(train(60), "--data-parallel", 2, "--save-llama", one));
        assertTrue(output.contains("Wrote a Llama of 64 tokens of context to " + one), output);
        output(0, with(train(60), "--tensor-parallel", 2, "--processes", "--save-llama", two));
        for (Path model : List.of(one, two)) {
            for (int ranks : new int[] {1, 2}) {
                Object[] args = {"generate", model, "--ranks", ranks, "--max-tokens", 30};
                String text = output(0, with(args, "--prompt", "The quick brown"));
                assertTrue(text.contains(" fox jumps over the lazy dog. "), text);
            }
        }
        Object[] wide = {"--context", 128, "--save-llama", folder.resolve("wide")};
        output(0, with(with(train(2), wide), "--dtype", "bfloat16"));
        assertTrue(read(folder.resolve("wide/config.json")).contains("_embeddings\": 128,"));
    }

    /** Neither the beginning of the text nor a sample ends within a character. */
    @Test
    void samplesAreText() throws IOException {
        Files.writeString(text, "日本語の文章。".repeat(40));
        String output = output(0, train(2));
        assertTrue(output.contains("Untrained it writes:\n日本語の文"), output);
        assertFalse(output.contains("\ufffd"), output);
    }

    /** bfloat16 activations have three decimal digits. */
    @Test
    void learnsInBfloat16() {
        List<Float> wide = losses(output(0, train(10)));
        List<Float> narrow = losses(output(0, with(train(10), "--dtype", "bfloat16")));
        assertEquals(wide.size(), narrow.size());
        assertEquals(wide.get(0), narrow.get(0), 0.05f);
        assertTrue(narrow.get(9) < narrow.get(0) / 2, narrow::toString);
    }

    @Test
    void learnsInProcesses() throws Exception {
        List<Float> threads = losses(output(0, with(train(10), "--tensor-parallel", 2)));
        Path output = folder.resolve("output.txt");
        try (var stream = new java.io.PrintStream(Files.newOutputStream(output))) {
            List<String> args = new ArrayList<>(List.of("--nproc", "2"));
            args.addAll(List.of("--jvm-arg=-XX:TieredStopAtLevel=1", Main.class.getName()));
            args.addAll(words(with(train(10), "--tensor-parallel", 2)));
            int code = Launch.run(stream, stream, args);
            assertEquals(0, code, () -> read(output));
        }
        List<Float> processes = losses(read(output));
        assertEquals(threads.size(), processes.size(), () -> read(output));
        for (int i = 0; i < threads.size(); i++) {
            assertEquals(threads.get(i), processes.get(i), 0.005f);
        }
    }

    @Test
    void refusesProcessesInARank() {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        try (PrintStream sink = new PrintStream(bytes, true)) {
            List<String> args = words("--nproc", 1, Main.class.getName(), "train", "--processes");
            assertEquals(2, Launch.run(sink, sink, args), bytes::toString);
        }
        assertTrue(bytes.toString().contains("error: --processes starts"), bytes::toString);
    }

    private static String read(Path file) {
        try {
            return Files.readString(file);
        } catch (IOException e) {
            throw new java.io.UncheckedIOException(e);
        }
    }

    /** Only a job that starts writes its settings: a refused command leaves no file. */
    @Test
    void createsNoFolderWhenItRefuses() throws IOException {
        Path fresh = folder.resolve("fresh");
        Object[] wrong = {"train", "--text", text, "--batch", 7, "--steps", 1, "--resume", fresh};
        Object[] llama = {"--save-llama", folder.resolve("llama")};
        for (Object[] more : new Object[][] {{}, {"--processes"}}) {
            output(2, with(with(wrong, llama), more));
            assertEquals(List.of("text.txt"), names(folder));
        }
        // More GPUs than any host has.
        Object[] gpus = {"train", "--text", text, "--device", "gpu", "--data-parallel", 1024};
        Object[] files = with(llama, "--batch", 1024, "--resume", fresh);
        for (Object[] more : new Object[][] {{}, {"--processes"}}) {
            String refused = output(1, with(with(gpus, files), more));
            assertTrue(refused.contains("GPU"), refused);
            assertEquals(List.of("text.txt"), names(folder));
        }
        output(0, with(with(train(1), "--resume"), fresh));
        assertTrue(Files.exists(fresh.resolve("job.txt")));
    }

    @Test
    void wrongArgumentsAreNamed() throws IOException {
        assertTrue(output(2, "train", "--text", folder.resolve("none")).contains("cannot read"));
        assertTrue(output(2, "train", "--text", text, "--batch", 7).contains("7 cannot be"));
        assertTrue(output(2, "train", "--text", text, "--steps", 0).contains("1 or more, not 0"));
        assertTrue(
                output(2, "train", "--text", text, "--sample", -1)
                        .contains("be 0 or more, not -1"));
        assertTrue(
                output(2, "train", "--text", text, "--tensor-parallel", 3)
                        .contains("must divide the model's 8 heads, not be 3"));
        assertTrue(output(2, "train", "--text", text, "--context", 1).contains("from 2 to 4096"));
        assertTrue(
                output(2, "train", "--text", text, "--context", 9, "--tensor-parallel", 2)
                        .contains("9 cannot be divided among --tensor-parallel 2"));
        assertTrue(
                output(2, "train", "--text", text, "--checkpoint-every", 3).contains("--resume"));
        // The command fails before it starts ranks: one rank would fail, the other would wait.
        assertTrue(
                output(1, "train", "--text", text, "--resume", text.resolve("x")).contains("x: "));
        Path tiny = folder.resolve("tiny");
        Files.writeString(tiny, "tiny");
        assertTrue(output(2, "train", "--text", tiny).contains("has 4 bytes"));
    }
}
