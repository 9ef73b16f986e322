// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.finetune;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.stream.Stream;
import org.djlx.samples.CommandTest;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** The issue asks that a tiny model visibly learns within 2 minutes. */
@Timeout(200)
@Tag("slow")
class FinetuneCommandTest extends CommandTest {

    private static final List<String> CAPITALS =
            List.of("France Paris", "Italy Rome", "Peru Lima", "Kenya Nairobi", "Japan Tokyo");

    @TempDir private static Path folder;
    private static Path model;
    private static Path data;

    @BeforeAll
    static void writeFiles() throws IOException {
        model = folder.resolve("tiny");
        data = folder.resolve("chats.jsonl");
        StringBuilder lines = new StringBuilder();
        for (String pair : CAPITALS) {
            lines.append("{\"messages\": [{\"role\": \"user\", \"content\": \"Capital of ")
                    .append(pair.split(" ")[0])
                    .append("?\"}, {\"role\": \"assistant\", \"content\": \"It is ")
                    .append(pair.split(" ")[1])
                    .append(".\"}]}\n");
        }
        Files.writeString(data, lines);
        output(0, "serve-model", model, "--vocabulary", 300);
    }

    private static String answer(String output, String when) {
        return output.lines()
                .filter(line -> line.startsWith(when))
                .findFirst()
                .orElseThrow(() -> new AssertionError(output))
                .substring(when.length())
                .strip();
    }

    @ParameterizedTest
    @CsvSource({"true, 1", "true, 2", "false, 1"})
    void aTinyModelLearnsTheAnswers(boolean lora, int ranks) throws Exception {
        Path out = folder.resolve("tuned-" + lora + ranks);
        Stream<Object> args = Stream.of("finetune", model, "--data", data, "--ranks", ranks);
        Stream<Object> more = Stream.of("--save", out, "--ask", "Capital of Peru?");
        Stream<Object> how =
                lora
                        ? Stream.of("--lora", 8, "--rslora", "--lora-dropout", 0.05)
                        : Stream.of("--learning-rate", 0.002, "--steps", 60);
        Object[] all = Stream.of(args, more, how).flatMap(each -> each).toArray();
        String output = output(0, all);
        assertFalse(answer(output, "Before:").contains("Lima"), output);
        assertEquals("It is Lima.", answer(output, "After:"), output);
        assertEquals(lora, Files.exists(out.resolve("adapter/adapter_model.safetensors")));
        // Another program loads the result.
        String said = output(0, "generate", out, "--prompt", "Capital", "--max-tokens", 3);
        assertTrue(said.contains("Capital"), said);
    }

    @Test
    void refusesWrongArgumentsBeforeItLoadsTheModel() throws Exception {
        Path wrong = Files.writeString(folder.resolve("wrong.jsonl"), "{\"messages\": []}\n");
        String output = output(2, "finetune", model, "--data", wrong, "--lora", 8);
        assertTrue(output.contains("wrong.jsonl, line 1"), output);
        output = output(2, "finetune", folder, "--data", data);
        assertTrue(output.contains("not a model directory"), output);
        output = output(2, "finetune", model, "--data", data, "--lora", 0);
        assertTrue(output.contains("rank must be 1 or more"), output);
        output = output(2, "finetune", model, "--data", data, "--rslora");
        assertTrue(output.contains("are for adapters: add --lora RANK"), output);
        output =
                output(
                        2,
                        "finetune",
                        model,
                        "--data",
                        data,
                        "--lora",
                        8,
                        "--target-modules",
                        "q_proj,x");
        assertTrue(output.contains("target_modules has 'x'; supported are [q_proj, k"), output);
        output = output(2, "finetune", model, "--data", data, "--lora", 8, "--lora-dropout", 1);
        assertTrue(output.contains("dropout must be at least 0 and below 1"), output);
        output = output(2, "finetune", model, "--data", data, "--learning-rate", 0);
        assertTrue(output.contains("--learning-rate must be above 0, not 0.0"), output);
        output = output(2, "finetune", model, "--data", data, "--save", model);
        assertTrue(output.contains("another directory"), output);
        output = output(2, "finetune", model);
        assertTrue(output.contains("--data"), output);
    }
}
