// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.langchain4j;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.langchain4j.data.embedding.Embedding;
import dev.langchain4j.data.segment.TextSegment;
import dev.langchain4j.exception.UnsupportedFeatureException;
import dev.langchain4j.model.embedding.request.EmbeddingInputType;
import dev.langchain4j.model.embedding.request.EmbeddingRequest;
import dev.langchain4j.model.output.Response;
import java.io.IOException;
import java.nio.file.Path;
import java.util.List;
import org.djlx.llm.EmbeddingModel;
import org.djlx.llm.model.EncoderFiles;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class TextEmbeddingModelTest {

    @TempDir private static Path directory;
    private static EmbeddingModel plain;
    private static TextEmbeddingModel model;

    @BeforeAll
    static void load() throws IOException {
        EncoderFiles.write(directory, "bert", "", "mean_tokens");
        plain = EmbeddingModel.of(directory.toString());
        model = new TextEmbeddingModel(plain);
    }

    @AfterAll
    static void close() {
        model.close();
    }

    @Test
    void embedsTextsAndSegments() {
        float[] expected = plain.embed("a b");
        assertEquals(expected.length, model.dimension());
        assertArrayEquals(expected, model.embed("a b").content().vector(), 1e-6f);
        Response<List<Embedding>> all =
                model.embedAll(List.of(TextSegment.from("zed"), TextSegment.from("a b")));
        assertArrayEquals(expected, all.content().get(1).vector(), 1e-6f);
        int tokens = plain.encode("a b", null).length + plain.encode("zed", null).length;
        assertEquals(tokens, all.tokenUsage().inputTokenCount());
    }

    @Test
    void queriesHaveTheModelsPrompt() {
        EmbeddingRequest.Builder request = EmbeddingRequest.builder().input("z").dimensions(6);
        float[] query =
                model.embed(request.inputType(EmbeddingInputType.QUERY).build())
                        .embeddings()
                        .get(0)
                        .vector();
        float[] document =
                model.embed(request.inputType(EmbeddingInputType.DOCUMENT).build())
                        .embeddings()
                        .get(0)
                        .vector();
        assertArrayEquals(expected("query"), query, 1e-6f);
        assertArrayEquals(expected(null), document, 1e-6f);
    }

    private static float[] expected(String prompt) {
        return plain.embedTokens(List.of(plain.encode("z", prompt)), 6).vectors().get(0);
    }

    @Test
    void refusesOtherModels() {
        EmbeddingRequest request = EmbeddingRequest.builder().input("z").modelName("b").build();
        assertThrows(UnsupportedFeatureException.class, () -> model.embed(request));
    }
}
