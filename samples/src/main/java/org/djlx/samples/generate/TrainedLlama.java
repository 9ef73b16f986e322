// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.generate;

import ai.djl.ndarray.NDArray;
import java.io.IOException;
import java.nio.file.Path;
import java.util.Map;
import org.djlx.fusedops.llm.model.ModelConfig;

/** Writes a Llama trained on bytes of text in Hugging Face's layout. */
public final class TrainedLlama {

    /** The number of byte tokens: a byte's token id is its value. */
    public static final int BYTES = 256;

    /** The token that begins every text. */
    public static final int BEGIN = tokenizer().id(BytePairEncoding.BEGIN);

    /** The size of the vocabulary: all bytes and the special tokens. */
    public static final int VOCABULARY = BytePairEncoding.smallest();

    private TrainedLlama() {}

    private static BytePairEncoding tokenizer() {
        return BytePairEncoding.train("", BytePairEncoding.smallest());
    }

    /**
     * Writes a model directory with 1 as the default number of ranks; {@code --ranks} of other
     * commands overrides it.
     *
     * @param directory the directory, which is created if missing; its files are replaced
     * @param config the sizes, of {@link #VOCABULARY} tokens
     * @param weights the weight of each module by its name in the files, such as {@code
     *     model.layers.0.mlp.up_proj}; this method closes them
     * @throws IOException if a file cannot be written
     * @throws IllegalArgumentException if a tensor is missing or has another shape
     */
    public static void write(Path directory, ModelConfig config, Map<String, NDArray> weights)
            throws IOException {
        LlamaDirectory.write(
                directory,
                config,
                tokenizer(),
                1,
                Long.MAX_VALUE,
                tensor -> {
                    NDArray weight = weights.get(tensor.name().replaceFirst("\\.weight$", ""));
                    if (weight == null) {
                        throw new IllegalArgumentException("there is no " + tensor.name());
                    }
                    return weight;
                });
    }
}
