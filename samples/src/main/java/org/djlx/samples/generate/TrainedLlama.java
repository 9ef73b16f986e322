// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.generate;

import java.io.IOException;
import java.nio.file.Path;
import org.djlx.llm.files.BytePairEncoding;
import org.djlx.llm.files.LlamaDirectory;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.tune.TrainableModel;
import org.djlx.nativeops.torch.ScalarType;

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
     * Returns a configuration of {@link #VOCABULARY} tokens with a tied embedding.
     *
     * @param maxLength the tokens of the longest text
     */
    public static ModelConfig config(
            int hidden, int intermediate, int layers, int heads, int kvHeads, int maxLength) {
        return LlamaDirectory.config(
                VOCABULARY,
                hidden,
                intermediate,
                layers,
                heads,
                kvHeads,
                maxLength,
                10_000,
                true,
                ScalarType.FLOAT32);
    }

    /**
     * Writes a model directory with 1 as the default number of ranks; {@code --ranks} of other
     * commands overrides it. All ranks of the model call this; the first one writes.
     *
     * @param directory the directory, which is created if missing; its files are replaced
     * @param model the model, of a {@link #config}
     * @param isFirst whether this is the first rank
     * @throws IOException if a file cannot be written
     */
    public static void write(Path directory, TrainableModel model, boolean isFirst)
            throws IOException {
        if (isFirst) {
            LlamaDirectory.writeAllButWeights(directory, model.config(), tokenizer(), 1);
        }
        model.save(directory);
    }
}
