// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import java.util.ArrayList;
import java.util.List;
import java.util.function.UnaryOperator;
import org.djlx.llm.model.EncoderConfig;
import org.djlx.nativeops.torch.Torch;

/** {@link EncoderConfig.Bert}. */
final class BertEncoder extends PackedEncoder {

    private final int firstPosition;
    private final NDArray words;
    private final NDArray positions; // and the embedding of the token type, which is always 0
    private final EncoderWeights.Norm norm;
    private final List<Layer> layers = new ArrayList<>();

    private record Layer(
            DenseLayers queriesKeysValues, DenseLayers attentionOut, DenseLayers mlp) {}

    BertEncoder(EncoderConfig.Bert config, EncoderWeights weights) {
        super(config.sizes(), weights);
        firstPosition = config.firstPosition();
        int hidden = sizes.hidden();
        words = weights.array("embeddings.word_embeddings.weight", sizes.vocabulary(), hidden);
        positions =
                weights.array("embeddings.position_embeddings.weight", config.positions(), hidden);
        try (NDArray types =
                        weights.array(
                                "embeddings.token_type_embeddings.weight",
                                config.tokenTypes(),
                                hidden);
                NDArray type = Torch.narrow(types, 0, 0, 1)) {
            positions.addi(type);
        }
        norm = weights.norm("embeddings.LayerNorm");
        for (int i = 0; i < sizes.layers(); i++) {
            String name = "encoder.layer." + i + ".";
            String self = name + "attention.self.";
            layers.add(
                    new Layer(
                            dense(
                                    weights.projection(
                                            hidden,
                                            3L * hidden,
                                            self + "query",
                                            self + "key",
                                            self + "value")),
                            dense(
                                    weights.norm(name + "attention.output.LayerNorm"),
                                    weights.projection(
                                            hidden, hidden, name + "attention.output.dense")),
                            dense(
                                    weights.norm(name + "output.LayerNorm"),
                                    weights.projection(
                                            hidden,
                                            sizes.intermediate(),
                                            name + "intermediate.dense"),
                                    weights.projection(
                                            sizes.intermediate(), hidden, name + "output.dense"))));
        }
    }

    @Override
    NDArray encode(NDManager manager, List<int[]> sequences, List<Group> groups) {
        NDArray embedded =
                rows(manager, words, tokens(sequences))
                        .addi(rows(manager, positions, positions(sequences, firstPosition)));
        UnaryOperator<NDArray> attention = attention(manager, groups);
        NDArray x = norm.apply(embedded);
        for (Layer layer : layers) {
            try (NDManager activations = manager.newSubManager()) {
                x.attach(activations);
                x = compute(layer, x, attention);
                x.attach(manager);
            }
        }
        return x;
    }

    private static NDArray compute(Layer layer, NDArray x, UnaryOperator<NDArray> attention) {
        NDArray attended = attention.apply(layer.queriesKeysValues.apply(x));
        NDArray middle = layer.attentionOut.addTo(x, attended);
        return layer.mlp.addTo(middle, middle);
    }
}
