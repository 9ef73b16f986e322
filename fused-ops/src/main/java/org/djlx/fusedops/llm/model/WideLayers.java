// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.model;

import ai.djl.ndarray.NDArray;
import java.util.ArrayList;
import java.util.List;
import java.util.function.IntConsumer;
import org.djlx.fusedops.internal.WideChain;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.torch.Torch;

/**
 * The layers and the logits of a decode step as {@link WideChain}s: one between two attentions.
 * Used by {@link Decoder} for its thread and stream.
 */
final class WideLayers {

    private final WideChain chain;
    private final float epsilon;
    private final ModelWeights weights;
    private final int layers;
    private final NDArray residual;
    private final NDArray otherResidual;
    private final NDArray qkv;
    private final NDArray attended;
    private final NDArray logits;

    /**
     * Keeps the buffers of a decoder.
     *
     * @param residual the residual stream before the first layer of a step; overwritten
     * @param otherResidual the residual stream, in turns with {@code residual}
     * @param qkv queries, keys and values, to be attended to
     * @param attended the output of attention
     */
    WideLayers(
            WideChain chain,
            ModelConfig config,
            ModelWeights weights,
            NDArray residual,
            NDArray otherResidual,
            NDArray qkv,
            NDArray attended,
            NDArray logits) {
        this.chain = chain;
        this.epsilon = (float) config.epsilon();
        this.weights = weights;
        this.layers = config.layers();
        this.residual = residual;
        this.otherResidual = otherResidual;
        this.qkv = qkv;
        this.attended = attended;
        this.logits = logits;
    }

    boolean isFor(int rows) {
        return chain.isFor(rows);
    }

    /**
     * Launches the kernels of layers, and of the logits.
     *
     * @param attend launches the attention of a layer
     */
    void launch(CudaStream stream, int rows, int firstLayer, IntConsumer attend) {
        long before = Torch.dataPointer(residual);
        long after = Torch.dataPointer(otherResidual);
        WideChain.Input input = new WideChain.Input(before, inputNorm(firstLayer));
        List<WideChain.Link> links = new ArrayList<>();
        for (int i = firstLayer; i < layers; i++) {
            ModelWeights.Layer layer = weights.layer(i);
            links.add(store(layer.queriesKeysValues(), qkv));
            chain.launch(stream, rows, input, epsilon, links);
            attend.accept(i);
            input = new WideChain.Input(Torch.dataPointer(attended), 0);
            links.clear();
            links.add(
                    WideChain.Link.add(
                            weight(layer.attentionOut()),
                            before,
                            after,
                            Torch.dataPointer(layer.mlpNorm())));
            links.add(WideChain.Link.activate(weight(layer.mlp().gateUp())));
            links.add(
                    WideChain.Link.add(
                            weight(layer.mlp().down()), after, before, inputNorm(i + 1)));
        }
        links.add(store(weights.output(), logits));
        chain.launch(stream, rows, input, epsilon, links);
    }

    /** Returns the norm of what a layer begins with; after the last layer, of the logits. */
    private long inputNorm(int layer) {
        return Torch.dataPointer(
                layer < layers ? weights.layer(layer).attentionNorm() : weights.norm());
    }

    private static WideChain.Link store(ModelWeights.Linear linear, NDArray output) {
        return WideChain.Link.store(
                weight(linear), Torch.dataPointer(output), (int) output.getShape().get(1));
    }

    private static WideChain.Weight weight(ModelWeights.Linear linear) {
        QuantizedMatrix matrix = linear.quantized();
        return new WideChain.Weight(
                matrix.weights(),
                matrix.scales(),
                linear.bias() == null ? 0 : Torch.dataPointer(linear.bias()),
                Math.toIntExact(matrix.outputs()),
                Math.toIntExact(matrix.inputs()));
    }
}
