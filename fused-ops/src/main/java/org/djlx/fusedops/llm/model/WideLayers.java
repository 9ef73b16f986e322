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
 * Launches the layers and the logits of a decode step with a {@link WideChain}. One kernel computes
 * all matmuls between the attentions of two layers. Belongs to a {@link Decoder}, on its thread and
 * stream.
 */
final class WideLayers {

    private final WideChain chain;
    private final float epsilon;
    private final ModelWeights weights;
    private final int layers;
    private final NDArray residual;
    private final NDArray attentionResidual;
    private final NDArray qkv;
    private final NDArray attended;
    private final NDArray logits;

    /**
     * Keeps the buffers of a decoder.
     *
     * @param residual the residual stream before a layer; each layer overwrites it
     * @param attentionResidual receives the residual stream after the attention of a layer
     * @param qkv receives the queries, keys and values of a layer
     * @param attended the output of attention
     * @param logits receives the logits
     */
    WideLayers(
            WideChain chain,
            ModelConfig config,
            ModelWeights weights,
            NDArray residual,
            NDArray attentionResidual,
            NDArray qkv,
            NDArray attended,
            NDArray logits) {
        this.chain = chain;
        this.epsilon = (float) config.epsilon();
        this.weights = weights;
        this.layers = config.layers();
        this.residual = residual;
        this.attentionResidual = attentionResidual;
        this.qkv = qkv;
        this.attended = attended;
        this.logits = logits;
    }

    /** Returns whether steps of this number of rows are supported. */
    boolean isFor(int rows) {
        return chain.isFor(rows);
    }

    /**
     * Launches the kernels of the layers and of the logits.
     *
     * @param rows the number of rows, allowed by {@link #isFor}
     * @param firstLayer the first layer to compute; {@code residual} has its input
     * @param attend launches the attention of a layer: reads {@code qkv}, writes {@code attended}
     */
    void launch(CudaStream stream, int rows, int firstLayer, IntConsumer attend) {
        long layerInput = Torch.dataPointer(residual);
        long afterAttention = Torch.dataPointer(attentionResidual);
        WideChain.Input input = new WideChain.Input(layerInput, inputNorm(firstLayer));
        List<WideChain.Link> links = new ArrayList<>(); // of the next launch
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
                            layerInput,
                            afterAttention,
                            Torch.dataPointer(layer.mlpNorm())));
            links.add(WideChain.Link.activate(weight(layer.mlp().gateUp())));
            links.add(
                    WideChain.Link.add(
                            weight(layer.mlp().down()),
                            afterAttention,
                            layerInput,
                            inputNorm(i + 1)));
        }
        links.add(store(weights.output(), logits));
        chain.launch(stream, rows, input, epsilon, links);
    }

    /** Returns the weight of the norm before a layer; after the last layer, before the logits. */
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
