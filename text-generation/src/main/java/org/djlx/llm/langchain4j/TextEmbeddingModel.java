// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.langchain4j;

import dev.langchain4j.data.embedding.Embedding;
import dev.langchain4j.model.embedding.EmbeddingModel;
import dev.langchain4j.model.embedding.request.EmbeddingInput;
import dev.langchain4j.model.embedding.request.EmbeddingParameter;
import dev.langchain4j.model.embedding.request.EmbeddingRequest;
import dev.langchain4j.model.embedding.request.EmbeddingRequestParameters;
import dev.langchain4j.model.embedding.response.EmbeddingResponse;
import dev.langchain4j.model.output.TokenUsage;
import java.io.IOException;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import org.djlx.llm.Embeddings;
import org.djlx.nativeops.host.Required;

/**
 * An embedding model of LangChain4j, in this JVM. Thread-safe. Requests may set dimensions, and
 * whether they are queries or documents: the model's prompt of that name, if it has one, is put
 * before each text. Errors are those of {@link org.djlx.llm.EmbeddingModel}.
 *
 * <pre>{@code
 * try (TextEmbeddingModel model = TextEmbeddingModel.of("BAAI/bge-small-en-v1.5")) {
 *     Embedding vector = model.embed("A cat sleeps.").content();
 * }
 * }</pre>
 */
public final class TextEmbeddingModel implements EmbeddingModel, AutoCloseable {

    private final org.djlx.llm.EmbeddingModel model;

    /** Takes ownership of the model. */
    public TextEmbeddingModel(org.djlx.llm.EmbeddingModel model) {
        this.model = Required.argument("TextEmbeddingModel: model", model);
    }

    /** Loads a model, as {@link org.djlx.llm.EmbeddingModel#of(String)}. */
    public static TextEmbeddingModel of(String model) throws IOException {
        return new TextEmbeddingModel(org.djlx.llm.EmbeddingModel.of(model));
    }

    @Override
    public Set<EmbeddingParameter<?>> supportedParameters() {
        return Set.of(EmbeddingRequestParameters.DIMENSIONS, EmbeddingRequestParameters.INPUT_TYPE);
    }

    @Override
    public EmbeddingResponse doEmbed(EmbeddingRequest request) {
        String prompt =
                request.inputType() == null
                        ? null
                        : request.inputType().name().toLowerCase(Locale.ROOT);
        boolean isKnown = prompt != null && model.config().prompts().containsKey(prompt);
        List<String> texts = request.inputs().stream().map(EmbeddingInput::text).toList();
        List<int[]> tokens = model.encode(texts, isKnown ? prompt : null);
        int dimensions = request.dimensions() == null ? dimension() : request.dimensions();
        Embeddings result = model.embedTokens(tokens, dimensions);
        return EmbeddingResponse.builder()
                .embeddings(result.vectors().stream().map(Embedding::from).toList())
                .tokenUsage(new TokenUsage(Math.toIntExact(result.tokens())))
                .build();
    }

    @Override
    public int dimension() {
        return model.dimensions();
    }

    @Override
    public void close() {
        model.close();
    }
}
