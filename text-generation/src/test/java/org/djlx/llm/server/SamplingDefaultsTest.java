// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import org.djlx.llm.GenerationRequest;
import org.djlx.llm.engine.ByteTokens;
import org.djlx.llm.engine.TextEngine;
import org.djlx.llm.text.ChatTemplate;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Requests get the model's sampling defaults for what they do not set. */
class SamplingDefaultsTest {

    @TempDir private Path directory;

    @Test
    void usesDefaultsWhereARequestSetsNothing() throws Exception {
        ByteTokens.writeModel(directory, 1);
        Files.writeString(
                directory.resolve("generation_config.json"),
                "{\"do_sample\": true, \"temperature\": 0.6, \"top_k\": 20, \"top_p\": 0.95,"
                        + " \"repetition_penalty\": 1.1}");
        try (TextEngine generator = TextEngine.builder().setDirectory(directory).build()) {
            TextApi api = new TextApi("tiny", generator, ChatTemplate.PLAIN);
            String messages = "\"messages\": [{\"role\": \"user\", \"content\": \"O\"}]";
            check(api.chat(utf8("{" + messages + "}")), 0.6, 20, 0.95, 1.1);
            check(
                    api.chat(
                            utf8(
                                    "{"
                                            + messages
                                            + ", \"temperature\": 0, \"top_k\": -1, \"top_p\": 0.5,"
                                            + " \"repetition_penalty\": 1}")),
                    0,
                    0,
                    0.5,
                    1);
            TextCall response =
                    api.response(utf8("{\"input\": \"O\", \"top_p\": 0.5, \"stream\": true}"));
            check(response, 0.6, 20, 0.5, 1.1);
            String begin = response.format().begin();
            assertTrue(begin.contains("\"temperature\":0.6,\"top_p\":0.5"), begin);
            check(api.completion(utf8("{\"prompt\": \"O\", \"top_k\": 3}")), 0.6, 3, 0.95, 1.1);
            // In DJL Serving's schema do_sample decides; it is false by default.
            check(
                    api.invocationOrChat(
                            utf8("{\"inputs\": \"O\", \"parameters\": {\"do_sample\": true}}")),
                    0.6,
                    20,
                    0.95,
                    1.1);
            check(api.invocationOrChat(utf8("{\"inputs\": \"O\"}")), 0, 20, 0.95, 1.1);
        }
    }

    private static byte[] utf8(String json) {
        return json.getBytes(StandardCharsets.UTF_8);
    }

    private static void check(
            TextCall call, double temperature, int topK, double topP, double repetitionPenalty) {
        GenerationRequest request = call.requests().get(0);
        assertEquals(temperature, request.temperature());
        assertEquals(topK, request.topK());
        assertEquals(topP, request.topP());
        assertEquals(repetitionPenalty, request.repetitionPenalty());
    }
}
