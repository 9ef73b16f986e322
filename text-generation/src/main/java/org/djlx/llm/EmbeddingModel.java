// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm;

import java.io.IOException;
import java.util.List;
import java.util.Optional;
import java.util.function.Supplier;
import org.djlx.llm.engine.EmbeddingEngine;
import org.djlx.llm.model.EmbeddingConfig;
import org.djlx.llm.text.ContextLengthException;
import org.djlx.llm.text.TextTokenizer;

/**
 * Computes a vector of each text, such that texts of like meaning have vectors of like direction.
 * Texts of all callers that wait are computed together. Thread-safe.
 *
 * <pre>{@code
 * try (EmbeddingModel model = EmbeddingModel.of("BAAI/bge-small-en-v1.5")) {
 *     float[][] vectors = model.embed(List.of("A cat sleeps.", "A kitten naps."));
 * }
 * }</pre>
 */
public interface EmbeddingModel extends AutoCloseable {

    /**
     * Loads a model on the CPU; {@link EmbeddingEngine#builder()} has options, such as GPUs. The
     * caller closes the model.
     *
     * @param model a directory, or a name on a Hugging Face hub, such as BAAI/bge-small-en-v1.5
     */
    static EmbeddingModel of(String model) throws IOException {
        return EmbeddingEngine.builder().setModel(model).build();
    }

    /** Computes the vector of a text, as {@link #embed(List)}. */
    default float[] embed(String text) {
        return embed(List.of(text))[0];
    }

    /** As {@link #embedTokens}, for texts, with the model's default prompt before each, if any. */
    default float[][] embed(List<String> texts) {
        return embedTokens(encode(texts, null), dimensions()).vectors().toArray(float[][]::new);
    }

    /**
     * Computes the vectors of texts. Blocks until done.
     *
     * @param texts the tokens of each text, special tokens included, as {@link #encode} returns
     *     them; one or more each
     * @param dimensions the length of the vectors, at most {@link #dimensions()}: models that were
     *     trained for it (Matryoshka) keep most of the meaning in the first elements
     * @throws ContextLengthException if a text has more than {@link #maxLength()} tokens
     * @throws IllegalArgumentException if a text has no tokens or a token is not in the vocabulary,
     *     or {@code dimensions} is out of range
     * @throws java.util.concurrent.RejectedExecutionException if too many texts wait
     * @throws IllegalStateException if the model is closed or has failed
     */
    Embeddings embedTokens(List<int[]> texts, int dimensions);

    /**
     * Encodes a text with a prompt before it.
     *
     * @param prompt the name of one of the {@linkplain #config() model's} prompts; null for its
     *     default prompt, if it has one
     * @throws ContextLengthException if the text is too long, unless the model truncates texts
     * @throws IllegalArgumentException if there is no such prompt, or the model has no tokenizer
     */
    int[] encode(String text, String prompt);

    /**
     * Encodes each text as {@link #encode(String, String)}, with the threads of Java's common pool.
     * Throws the exception of the first text that has one.
     */
    default List<int[]> encode(List<String> texts, String prompt) {
        List<Supplier<int[]>> tokens =
                texts.parallelStream().map(text -> attempt(text, prompt)).toList();
        return tokens.stream().map(Supplier::get).toList();
    }

    /**
     * Keeps an exception for later: a stream of the pool would wrap it, and not wait for others.
     */
    private Supplier<int[]> attempt(String text, String prompt) {
        try {
            int[] tokens = encode(text, prompt);
            return () -> tokens;
        } catch (RuntimeException e) {
            return () -> {
                throw e;
            };
        }
    }

    /** {@return the length of the model's vectors} */
    int dimensions();

    /** {@return the maximum number of tokens of a text} */
    int maxLength();

    /** {@return how the model makes one vector of a text, and its prompts} */
    EmbeddingConfig config();

    /** {@return the model's tokenizer; empty if it has none} The model closes it. */
    Optional<TextTokenizer> tokenizer();

    /** Waits for running batches, refuses waiting ones, and frees the model. */
    @Override
    void close();
}
