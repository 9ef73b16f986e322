// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.generate;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.samples.CommandTest;
import org.djlx.samples.Main;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

@Timeout(120)
@Tag("slow")
class GenerateCommandTest extends CommandTest {

    @TempDir private static Path folder;
    private static Path model;

    @BeforeAll
    static void writeModel() throws Exception {
        model = folder.resolve("tiny");
        output(0, "serve-model", model, "--vocabulary", 400);
    }

    /** Returns the generated text, without the progress of loading and the line about speed. */
    private static String text(Object... args) {
        Object[] all =
                Stream.concat(Stream.of("generate", model, "--prompt", "GPUs"), Stream.of(args))
                        .toArray();
        String output = output(0, all);
        return output.substring(output.indexOf("GPUs"), output.lastIndexOf("\n\n"));
    }

    @Test
    void anyNumberOfRanksWritesTheSame() {
        String said = output(0, "generate", model, "--prompt", "GPUs", "--max-tokens", 1);
        assertFalse(said.contains("MB of weights and"), said); // Loading takes less than 2 s.
        String one = text("--max-tokens", 24, "--ignore-eos");
        assertTrue(one.length() > 20, one);
        assertEquals(one, text("--max-tokens", 24, "--ignore-eos", "--ranks", 2));
        assertEquals(one, text("--max-tokens", 24, "--ignore-eos", "--ranks", 4));
    }

    /** Ranks started by launch: only rank 0 writes to stdout. */
    @Test
    void processesWriteTheSame() throws Exception {
        String[] options = {"--max-tokens", "24", "--ignore-eos"};
        List<String> command = new ArrayList<>();
        command.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
        command.addAll(List.of("-XX:TieredStopAtLevel=1", "-cp"));
        command.add(System.getProperty("java.class.path"));
        command.addAll(List.of(Main.class.getName(), "launch", "--nproc-per-node", "2"));
        command.addAll(List.of("--jvm-arg", "-XX:TieredStopAtLevel=1"));
        command.addAll(List.of("generate", model.toString(), "--prompt", "GPUs"));
        command.addAll(List.of(options));
        Path errors = folder.resolve("errors");
        Process launch = new ProcessBuilder(command).redirectError(errors.toFile()).start();
        String output = new String(launch.getInputStream().readAllBytes(), UTF_8);
        assertEquals(0, launch.waitFor(), () -> output);
        String text = output.lines().map(line -> line + "\n").collect(Collectors.joining());
        String rankZero = text((Object[]) options).replace("\n", "\n[0] ");
        assertEquals("[0] " + rankZero, text.substring(0, text.lastIndexOf("\n[0] \n")));
        assertTrue(output.lines().allMatch(line -> line.startsWith("[0] ")), output);
        List<String> lines = Files.readAllLines(errors);
        assertTrue(lines.stream().allMatch(l -> l.startsWith("[0] Loading")), lines::toString);
    }

    @Test
    @Tag("gpu")
    void gpusWriteTheSame() {
        Throwable cause = NativeLibrary.CUDA_PRESETS.unavailabilityCause();
        assumeTrue(cause == null, () -> cause.getMessage());
        assumeTrue(CudaDevice.count() >= 2, "there is one GPU only");
        // Few tokens: GPUs round otherwise, which may decide between two close logits.
        Object[] few = {"--max-tokens", 8, "--ignore-eos", "--ranks", 2, "--device", "cpu"};
        String expected = text(few);
        few[6] = "gpu";
        assertEquals(expected, text(few));
    }

    @Test
    void generatesTheSameTextForTheSameSeedOnly() {
        Object[] seven = {"--temperature", 1, "--seed", 7, "--max-tokens", 24, "--ignore-eos"};
        String text = text(seven);
        assertEquals(text, text(seven));
        seven[3] = 8;
        assertNotEquals(text, text(seven));
    }

    @Test
    void saysHowFastItWas() {
        String output =
                output(0, "generate", model, "--prompt", "GPUs", "--max-tokens", 3, "--ignore-eos");
        String last = output.lines().reduce((a, b) -> b).orElseThrow();
        assertTrue(
                last.matches(
                        "3 tokens after a prompt of [0-9]+: the first in [0-9]+ ms, then [0-9.,]+"
                                + " tokens/s"),
                output);
    }

    @Test
    void wrongArgumentsAreNamed() throws Exception {
        Path none = folder.resolve("none");
        assertTrue(output(2, "generate", none, "--prompt", "x").contains("is not a directory"));
        assertTrue(output(2, "generate", model).contains("--prompt"));
        assertTrue(output(2, "generate", model, "--prompt", "").contains("the prompt is empty"));
        assertTrue(
                output(2, "generate", model, "--prompt", "x", "--top-p", 0)
                        .contains("topP must be"));
        for (Object[] option : new Object[][] {{"--top-k", 5}, {"--top-p", 0.9}, {"--seed", 7}}) {
            assertTrue(
                    output(2, "generate", model, "--prompt", "x", option[0], option[1])
                            .contains("take a --temperature above 0"));
        }
        assertTrue(
                output(2, "generate", model, "--prompt", "x", "--ranks", 3)
                        .contains("cannot be divided among 3 ranks"));
        assertTrue(output(2, "generate", model, "--prompt", "x", "--ranks", 0).contains("--ranks"));
        assertTrue(
                output(2, "generate", model, "--prompt", "x", "--kv-cache-dtype", "fp8")
                        .contains("fp8 keys and values are for GPUs"));
        Files.createDirectory(none);
        assertTrue(output(2, "generate", none, "--prompt", "x").contains("config.json"));
        Files.copy(model.resolve("config.json"), none.resolve("config.json"));
        assertTrue(output(2, "generate", none, "--prompt", "x").contains("has no tokenizer.json"));
        Files.copy(model.resolve("tokenizer.json"), none.resolve("tokenizer.json"));
        assertTrue(
                output(2, "generate", none, "--prompt", "x").contains("has neither"), "no weights");
    }

    /** The tokenizer is checked before many GB of weights are read; here there are no weights. */
    @Test
    void tooManyTokensAreRefusedBeforeWeightsAreRead() throws Exception {
        Path bare = Files.createDirectory(folder.resolve("bare"));
        for (String file : List.of("config.json", "tokenizer.json")) {
            Files.copy(model.resolve(file), bare.resolve(file));
        }
        String tooLong = output(2, "generate", bare, "--prompt", "x", "--max-tokens", 1024);
        assertTrue(tooLong.contains("--max-tokens 1024 leaves no room for the prompt"), tooLong);
        assertTrue(tooLong.contains("takes 1024 tokens of prompt and answer"), tooLong);
        assertFalse(tooLong.contains("--max-length of"), tooLong);
        Object[] set = {
            "generate", bare, "--prompt", "x", "--max-tokens", 100, "--max-length", 100
        };
        tooLong = output(2, set);
        assertTrue(tooLong.contains("takes 100 tokens"), tooLong);
        assertTrue(tooLong.contains("or a --max-length of 1024 at most"), tooLong);
        set[5] = 99;
        assertTrue(output(2, set).contains("has neither"));
        // Only the tokenizer knows the prompt's tokens.
        assertTrue(
                output(2, "generate", model, "--prompt", "GPUs", "--max-tokens", 1023)
                        .contains("maxTokens is 1023, together more than the maxLength"));
    }
}
