// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm;

import java.io.IOException;
import java.nio.file.Path;
import java.util.Collections;
import java.util.List;
import java.util.Optional;
import org.djlx.llm.engine.TextEngine;
import org.djlx.llm.model.SamplingDefaults;
import org.djlx.llm.text.ContextLengthException;
import org.djlx.llm.text.TextTokenizer;

/**
 * Generates text for many requests at a time (continuous batching). Thread-safe.
 *
 * <pre>{@code
 * Generation generation =
 *         generator.submit(GenerationRequest.builder().setPrompt("Once").optMaxTokens(20).build());
 * GeneratedPiece piece;
 * while ((piece = generation.next(Duration.ofSeconds(10))) != null) {
 *     System.out.print(piece.text());
 * }
 * }</pre>
 */
public interface TextGenerator extends AutoCloseable {

    /**
     * Loads a model on the CPU, as {@link TextEngine.Builder#setModel} and {@link
     * TextEngine.Builder#build} do; {@link TextEngine#builder()} has options, such as GPUs. The
     * caller closes the generator.
     *
     * @param model a directory, or a name on a Hugging Face hub, such as Qwen/Qwen3-0.6B
     */
    static TextGenerator of(String model) throws IOException {
        return TextEngine.builder().setModel(model).build();
    }

    /** Submits a request, as {@link #submitAll}. */
    default Generation submit(GenerationRequest request) {
        return submitAll(Collections.singletonList(request)).get(0);
    }

    /**
     * Submits requests: all of them or none. Returns immediately. With prefix caching, a prompt
     * that several of them have is computed once.
     *
     * @throws ContextLengthException if a prompt and its new tokens are longer than {@link
     *     #maxLength()}
     * @throws IllegalArgumentException if there is no request, a prompt is empty, a token of a
     *     request is not in the vocabulary, or there are more requests than the queue holds
     * @throws java.util.concurrent.RejectedExecutionException if the queue is full
     * @throws IllegalStateException if the generator is closed or has failed; {@link
     *     #unavailabilityCause()} has the reason
     */
    List<Generation> submitAll(List<GenerationRequest> requests);

    /** {@return the maximum length of a sequence: the tokens of the prompt and the new tokens} */
    int maxLength();

    /** {@return the sampling parameters that front ends take if a request does not set them} */
    default SamplingDefaults samplingDefaults() {
        return SamplingDefaults.NONE;
    }

    /**
     * {@return the model's tokenizer; empty if the model has none: requests must then have token
     * prompts} The generator closes it.
     */
    Optional<TextTokenizer> tokenizer();

    /** {@return the names of the loaded LoRA adapters, in the order in which they were loaded} */
    default List<String> adapters() {
        return List.of();
    }

    /**
     * Loads a LoRA adapter beside the model's weights. Blocks until all ranks have loaded it, which
     * may take seconds; running requests continue meanwhile. After that, requests may {@linkplain
     * GenerationRequest.Builder#optAdapter name} it.
     *
     * @param name a name that no loaded adapter has
     * @param directory the adapter in the layout of Hugging Face's PEFT
     * @throws IllegalArgumentException if the name is empty or taken, or the adapter does not fit
     *     the model or is not supported; the message names the cause
     * @throws IOException if a rank cannot read the adapter
     * @throws IllegalStateException if the generator is closed or has failed
     * @throws UnsupportedOperationException if this generator takes no adapters
     */
    default void loadAdapter(String name, Path directory) throws IOException {
        throw new UnsupportedOperationException("this generator takes no adapters");
    }

    /**
     * Removes an adapter: new requests can no longer name it. Its weights are freed when the last
     * running request with it has ended.
     *
     * @throws IllegalArgumentException if there is no adapter of this name
     */
    default void unloadAdapter(String name) {
        throw new IllegalArgumentException("there is no adapter '" + name + "'");
    }

    GeneratorStatistics statistics();

    /**
     * {@return why requests are not accepted; empty if requests are accepted, also while the model
     * is loaded again after a rank has failed}
     */
    Optional<String> unavailabilityCause();

    /**
     * Cancels all requests and frees the model. Blocks until done. No-op if closed already. Must
     * not be called by a {@linkplain Generation#onProgress progress listener}.
     */
    @Override
    void close();
}
