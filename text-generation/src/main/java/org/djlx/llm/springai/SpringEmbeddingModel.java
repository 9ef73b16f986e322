// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.springai;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import org.djlx.llm.Embeddings;
import org.djlx.nativeops.host.Required;
import org.springframework.ai.chat.metadata.DefaultUsage;
import org.springframework.ai.document.Document;
import org.springframework.ai.embedding.BatchingStrategy;
import org.springframework.ai.embedding.Embedding;
import org.springframework.ai.embedding.EmbeddingModel;
import org.springframework.ai.embedding.EmbeddingOptions;
import org.springframework.ai.embedding.EmbeddingRequest;
import org.springframework.ai.embedding.EmbeddingResponse;
import org.springframework.ai.embedding.EmbeddingResponseMetadata;

/**
 * An embedding model as Spring AI's {@link EmbeddingModel}. Thread-safe.
 *
 * <pre>{@code
 * try (SpringEmbeddingModel model = SpringEmbeddingModel.of("BAAI/bge-small-en-v1.5")) {
 *     float[] vector = model.embed("A cat sleeps.");
 * }
 * }</pre>
 *
 * <ul>
 *   <li>Before documents stands the model's prompt {@value #DOCUMENT}, if it has one; before other
 *       texts its default prompt, or the one that the constructor names. Vector stores embed
 *       queries as texts.
 *   <li>Options may set dimensions; a model's name is refused.
 *   <li>Errors are those of {@link org.djlx.llm.EmbeddingModel}.
 *   <li>{@link #close} closes the model.
 * </ul>
 */
public final class SpringEmbeddingModel implements EmbeddingModel, AutoCloseable {

    private static final String DOCUMENT = "document";

    private final org.djlx.llm.EmbeddingModel model;
    private final String textPrompt;

    /** Takes ownership of the model. */
    public SpringEmbeddingModel(org.djlx.llm.EmbeddingModel model) {
        this(model, null);
    }

    /**
     * Takes ownership of the model.
     *
     * @param textPrompt the name of the model's prompt before texts that are not documents, such as
     *     query; null for its default prompt
     */
    public SpringEmbeddingModel(org.djlx.llm.EmbeddingModel model, String textPrompt) {
        this.model = Required.argument("SpringEmbeddingModel: model", model);
        this.textPrompt = textPrompt;
        Required.check(
                textPrompt == null || model.config().prompts().containsKey(textPrompt),
                "the model has no prompt '%s'; its prompts are %s",
                textPrompt,
                model.config().prompts().keySet());
    }

    /** Loads a model, as {@link org.djlx.llm.EmbeddingModel#of(String)}. */
    public static SpringEmbeddingModel of(String model) throws IOException {
        return new SpringEmbeddingModel(org.djlx.llm.EmbeddingModel.of(model));
    }

    @Override
    public EmbeddingResponse call(EmbeddingRequest request) {
        Embeddings result = embed(request.getInstructions(), textPrompt, request.getOptions());
        List<Embedding> embeddings = new ArrayList<>();
        result.vectors().forEach(each -> embeddings.add(new Embedding(each, embeddings.size())));
        EmbeddingResponseMetadata metadata = new EmbeddingResponseMetadata();
        metadata.setUsage(new DefaultUsage(Math.toIntExact(result.tokens()), 0));
        return new EmbeddingResponse(embeddings, metadata);
    }

    @Override
    public float[] embed(Document document) {
        return documents(List.of(document), null).get(0);
    }

    @Override
    public List<float[]> embed(
            List<Document> documents, EmbeddingOptions options, BatchingStrategy batches) {
        return batches.batch(documents).stream()
                .flatMap(batch -> documents(batch, options).stream())
                .toList();
    }

    private List<float[]> documents(List<Document> documents, EmbeddingOptions options) {
        boolean isKnown = model.config().prompts().containsKey(DOCUMENT);
        List<String> texts = documents.stream().map(this::getEmbeddingContent).toList();
        return embed(texts, isKnown ? DOCUMENT : null, options).vectors();
    }

    private Embeddings embed(List<String> texts, String prompt, EmbeddingOptions options) {
        String name = options == null ? null : options.getModel();
        Required.check(
                name == null, "unknown model '%s'; leave the name out: there is one model", name);
        boolean isSet = options != null && options.getDimensions() != null;
        int dimensions = isSet ? options.getDimensions() : dimensions();
        return model.embedTokens(model.encode(texts, prompt), dimensions);
    }

    @Override
    public int dimensions() {
        return model.dimensions();
    }

    @Override
    public void close() {
        model.close();
    }
}
