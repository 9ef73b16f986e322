// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.springai;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.djlx.llm.EmbeddingModel;
import org.djlx.llm.model.EncoderFiles;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.springframework.ai.document.Document;
import org.springframework.ai.embedding.EmbeddingOptions;
import org.springframework.ai.embedding.EmbeddingRequest;
import org.springframework.ai.embedding.EmbeddingResponse;

/** An embedding model as Spring AI's, through the methods that Spring AI's own classes call. */
@Timeout(120)
class SpringEmbeddingModelTest {

    private static final EmbeddingOptions SHORT = EmbeddingOptions.builder().dimensions(6).build();

    @TempDir private static Path directory;
    private static EmbeddingModel plain;
    private static SpringEmbeddingModel model;

    @BeforeAll
    static void load() throws IOException {
        EncoderFiles.write(directory, "bert", "", "mean_tokens");
        Path prompts = directory.resolve("config_sentence_transformers.json");
        String json = Files.readString(prompts);
        String both = json.replace("\"query\":", "\"document\": \"b \", \"query\":");
        assertTrue(both.length() > json.length(), json);
        Files.writeString(prompts, both);
        plain = EmbeddingModel.of(directory.toString());
        model = new SpringEmbeddingModel(plain);
    }

    @AfterAll
    static void close() {
        model.close();
    }

    private static float[] expected(String text, String prompt, int dimensions) {
        List<int[]> tokens = List.of(plain.encode(text, prompt));
        return plain.embedTokens(tokens, dimensions).vectors().get(0);
    }

    @Test
    void embedsTexts() {
        float[] expected = expected("a b", null, plain.dimensions());
        assertEquals(expected.length, model.dimensions());
        assertArrayEquals(expected, model.embed("a b"), 1e-6f);
        assertArrayEquals(expected, model.embed(List.of("zed", "a b")).get(1), 1e-6f);
        EmbeddingResponse response = model.embedForResponse(List.of("zed", "a b"));
        assertEquals(1, response.getResults().get(1).getIndex());
        assertArrayEquals(expected, response.getResults().get(1).getOutput(), 1e-6f);
        int tokens = plain.encode("a b", null).length + plain.encode("zed", null).length;
        assertEquals(tokens, response.getMetadata().getUsage().getPromptTokens());
        assertEquals(tokens, response.getMetadata().getUsage().getTotalTokens());
    }

    @Test
    void optionsSetDimensions() {
        EmbeddingResponse response = model.call(new EmbeddingRequest(List.of("a b"), SHORT));
        assertArrayEquals(expected("a b", null, 6), response.getResult().getOutput(), 1e-6f);
    }

    @Test
    void documentsHaveTheModelsPrompt() {
        Document first = new Document("a b");
        Document second = new Document("zed");
        int all = plain.dimensions();
        assertArrayEquals(expected("a b", "document", all), model.embed(first), 1e-6f);
        List<float[]> vectors =
                model.embed(
                        List.of(first, second),
                        SHORT,
                        documents -> documents.stream().map(List::of).toList());
        assertEquals(2, vectors.size());
        assertArrayEquals(expected("a b", "document", 6), vectors.get(0), 1e-6f);
        assertArrayEquals(expected("zed", "document", 6), vectors.get(1), 1e-6f);
    }

    @Test
    void textsHaveThePromptOfTheConstructor() {
        SpringEmbeddingModel queries = new SpringEmbeddingModel(plain, "query");
        assertArrayEquals(expected("z", "query", plain.dimensions()), queries.embed("z"), 1e-6f);
        assertRefused("no prompt 'x'", () -> new SpringEmbeddingModel(plain, "x"));
    }

    @Test
    void refusesOtherModelsAndDimensions() {
        EmbeddingOptions other = EmbeddingOptions.builder().model("b").build();
        assertRefused(
                "unknown model 'b'", () -> model.call(new EmbeddingRequest(List.of("z"), other)));
        EmbeddingOptions many = EmbeddingOptions.builder().dimensions(1000).build();
        assertRefused("1000", () -> model.call(new EmbeddingRequest(List.of("z"), many)));
    }

    private static void assertRefused(String named, Runnable call) {
        String message = assertThrows(IllegalArgumentException.class, call::run).getMessage();
        assertTrue(message.contains(named), message);
    }
}
