// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

import java.util.Collections;
import java.util.List;
import org.djlx.nativeops.torch.ScalarType;

/** Builds the configuration of a small Llama: a test names what it is about. */
public final class LlamaConfig {

    private String modelType = "llama";
    private int vocabulary = 203;
    private int hidden = 64;
    private int heads = 8;
    private int kvHeads = 2;
    private int headSize = 16;
    private int maxLength = 512;
    private boolean tied;
    private List<Integer> endTokens = List.of(7);
    private ScalarType type = ScalarType.FLOAT32;
    private List<LayerConfig> layers = List.of();

    private LlamaConfig() {}

    public static LlamaConfig builder() {
        return new LlamaConfig();
    }

    public LlamaConfig modelType(String name) {
        modelType = name;
        return this;
    }

    public LlamaConfig vocabulary(int tokens) {
        vocabulary = tokens;
        return this;
    }

    public LlamaConfig hidden(int size) {
        hidden = size;
        return this;
    }

    public LlamaConfig heads(int count, int ofKeysAndValues, int size) {
        heads = count;
        kvHeads = ofKeysAndValues;
        headSize = size;
        return this;
    }

    public LlamaConfig maxLength(int tokens) {
        maxLength = tokens;
        return this;
    }

    public LlamaConfig tied(boolean isTied) {
        tied = isTied;
        return this;
    }

    public LlamaConfig endTokens(Integer... tokens) {
        endTokens = List.of(tokens);
        return this;
    }

    public LlamaConfig type(ScalarType weights) {
        type = weights;
        return this;
    }

    /** Sets equal layers of Llama, with {@link LlamaFiles#rope}; call it after {@link #heads}. */
    public LlamaConfig layers(int count, int intermediate) {
        LayerConfig layer = LayerConfig.llama(LlamaFiles.rope(headSize), headSize, intermediate);
        return layers(count, layer);
    }

    public LlamaConfig layers(int count, LayerConfig layer) {
        layers = Collections.nCopies(count, layer);
        return this;
    }

    public ModelConfig build() {
        return new ModelConfig(
                modelType,
                vocabulary,
                hidden,
                heads,
                kvHeads,
                headSize,
                maxLength,
                1e-5,
                tied,
                endTokens,
                type,
                layers,
                1,
                1,
                0,
                false,
                KvCacheDtype.AUTO);
    }
}
