// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.train;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.List;
import org.djlx.collectives.launch.Launch;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(200)
@Tag("slow")
class TrainCheckpointTest extends TrainCommandCase {

    /** A job stopped as threads and resumed as processes has the same bits as one never stopped. */
    @Test
    void resumesFromACheckpoint() throws Exception {
        Path whole = folder.resolve("whole");
        Path parts = folder.resolve("parts");
        Object[] jobs = {"train", "--text", text, "--batch", 4, "--data-parallel", 2};
        Object[] args = with(jobs, "--sample", SAMPLE, "--steps");
        String expected = output(0, with(args, 60, "--resume", whole, "--checkpoint-every", 25));
        assertEquals("What it writes:\n\n".length() + 16 + SAMPLE, written(expected).length());
        output(0, with(args, 35, "--resume", parts));
        assertEquals(
                List.of(
                        "checkpoint-25.safetensors",
                        "checkpoint-50.safetensors",
                        "checkpoint-60.safetensors",
                        "job.txt"),
                names(whole));
        String actual = output(0, with(args, 60, "--resume", parts));
        assertTrue(actual.contains("Going on from step 35"), actual);
        assertTrue(expected.contains("Untrained it writes:\nThe quick brown "), expected);
        assertFalse(actual.contains("Untrained"), actual);
        List<Float> losses = losses(expected); // of steps 1, 6, 12, … 60
        assertEquals(losses.subList(6, 11), losses(actual));
        assertArrayEquals(checkpoint("whole", 60), checkpoint("parts", 60));
        assertEquals(written(expected), written(actual));
        // A finished job writes its text again.
        String again = output(0, with(args, 60, "--resume", parts));
        assertEquals(List.of(), losses(again));
        assertEquals(written(expected), written(again));
        String less = output(0, with(args, 59, "--resume", parts));
        assertTrue(less.contains("Step 60 is reached already"), less);
        assertEquals(written(expected), written(less));
        String other = output(2, with(args, 60, "--resume", parts, "--seed", 2));
        assertTrue(other.contains("was begun with --seed 1, not --seed 2: give the same"), other);
        other =
                output(
                        2,
                        with(args, 60, "--resume", parts, "--context", 32, "--dtype", "bfloat16"));
        assertTrue(
                other.contains(
                        "with --context 64, --dtype float32, not --context 32, --dtype bfloat16:"),
                other);
        output(2, with(args, 60, "--resume", parts, "--tensor-parallel", 2));
        Files.writeString(text, "x", StandardOpenOption.APPEND);
        other = output(2, with(args, 60, "--resume", parts));
        assertTrue(
                other.matches("(?s).*with --text of \\d+ bytes.*, not --text of \\d+ .*"), other);
    }

    /** Each part of a model has its own checkpoints; all parts resume from the same step. */
    @Test
    void resumesADividedModel() throws Exception {
        Path whole = folder.resolve("whole");
        Path parts = folder.resolve("parts");
        Object[] divided = {"--tensor-parallel", 2, "--resume"};
        output(0, with(with(train(8), divided), whole));
        output(0, with(with(train(5), divided), parts));
        String actual = output(0, with(with(train(8), divided), parts));
        assertTrue(actual.contains("Going on from step 5"), actual);
        assertSameParts(8);
        // One part has saved a checkpoint, the other has not.
        Files.delete(parts.resolve("part-1/checkpoint-8.safetensors"));
        String again = output(0, with(with(train(8), divided), parts));
        assertTrue(again.contains("Going on from step 7"), again);
        assertSameParts(8);
        for (String name : names(parts.resolve("part-1"))) {
            Files.delete(parts.resolve("part-1").resolve(name));
        }
        String none = output(1, with(with(train(8), divided), parts));
        assertTrue(none.contains("[[6, 7, 8], []]"), none);
    }

    private void assertSameParts(int step) throws IOException {
        for (String part : List.of("/part-0", "/part-1")) {
            assertArrayEquals(checkpoint("whole" + part, step), checkpoint("parts" + part, step));
        }
    }

    /** A rank is killed between two checkpoints; the launcher restarts all ranks. */
    @Test
    void losesNothingWhenARankIsKilled() throws Exception {
        List<String> whole = launch("whole", 0);
        List<String> parts = launch("parts", 27);
        for (int rank = 0; rank < 2; rank++) {
            String restored = "[" + rank + "] restored 20";
            assertTrue(parts.contains(restored), parts::toString);
            List<String> after = parts.subList(parts.indexOf(restored), parts.size());
            String line = "[" + rank + "] loss ";
            List<String> expected = lines(whole, line);
            assertEquals(60, expected.size());
            assertEquals(expected.subList(20, 60), lines(after, line));
        }
        assertEquals(lines(whole, "[0] text"), lines(parts, "[0] text"));
        assertArrayEquals(checkpoint("whole", 60), checkpoint("parts", 60));
    }

    private static List<String> lines(List<String> lines, String beginning) {
        return lines.stream().filter(line -> line.startsWith(beginning)).toList();
    }

    private List<String> launch(String checkpoints, int lastStep) throws Exception {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        PrintStream stream = new PrintStream(bytes, true);
        String there = folder.resolve(checkpoints).toString();
        List<String> args = new ArrayList<>(List.of("--nproc", "2", "--max-restarts", "1"));
        args.addAll(List.of("--jvm-arg=-XX:TieredStopAtLevel=1", KilledTrainMain.class.getName()));
        args.addAll(List.of(text.toString(), there, "" + lastStep));
        int code = Launch.run(stream, stream, args);
        assertEquals(0, code, bytes::toString);
        boolean killed = bytes.toString().contains("rank 1 exited with code 137 (signal 9)");
        assertEquals(lastStep > 0, killed, bytes::toString);
        return bytes.toString().lines().toList();
    }

    private byte[] checkpoint(String folder, int step) throws IOException {
        return Files.readAllBytes(
                this.folder.resolve(folder).resolve("checkpoint-" + step + ".safetensors"));
    }

    private static String written(String output) {
        return output.substring(output.indexOf("What it writes:"));
    }
}
