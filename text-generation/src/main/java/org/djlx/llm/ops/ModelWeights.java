// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import java.util.List;
import java.util.function.LongConsumer;
import org.djlx.collectives.safetensors.TensorFiles;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.model.WeightMap;
import org.djlx.nativeops.torch.Torch;

/**
 * One rank's weights in memory, divided as {@link WeightMap} says. All have the model's type,
 * except norms that multiply by 1 plus their weight (float32) and quantized projections.
 *
 * <p>Matrices are stored as in the files, (outputs, inputs). Activations are multiplied by
 * transposed views. Query, key and value projections are one matrix; so are gate and up, of each
 * expert.
 *
 * @param embedding of this rank's part of the vocabulary, a row for each token
 * @param memory owns all arrays
 */
public record ModelWeights(
        WeightFormat format,
        NDArray embedding,
        List<Layer> layers,
        NDArray norm,
        Linear output,
        WeightReader memory)
        implements AutoCloseable {

    /**
     * A projection.
     *
     * @param weights of shape (inputs, outputs), transposed views: one, or on a CPU several with
     *     some of the outputs each; none if it is quantized
     * @param bias of shape (outputs); null if there is none
     * @param quantized null if it is not quantized
     */
    record Linear(List<NDArray> weights, NDArray bias, QuantizedMatrix quantized) {

        Linear(NDArray weight, NDArray bias) {
            this(List.of(weight), bias, null);
        }

        /** Returns the only matrix; throws if there is another number. */
        NDArray weight() {
            if (weights.size() != 1) {
                throw new IllegalStateException(
                        "the projection has " + weights.size() + " matrices; use weights()");
            }
            return weights.get(0);
        }

        Linear withBias(NDArray bias) {
            return new Linear(weights, bias, quantized);
        }

        /** Returns whether collectives can be fused with its matmul. */
        boolean isFusible() {
            return quantized == null && !isInFloat32(weights.get(0));
        }

        /** Multiplies rows, without the bias; on a GPU only if it is not quantized. */
        NDArray multiply(NDArray x) {
            if (quantized != null) {
                return quantized.multiply(x);
            }
            long outputs = weights.stream().mapToLong(weight -> weight.getShape().get(1)).sum();
            if (isInFloat32(x)) {
                return Float32Matmul.multiply(x, weights, outputs);
            }
            if (weights.size() == 1) {
                return x.matMul(weight());
            }
            Shape shape = new Shape(x.getShape().get(0), outputs);
            NDArray product = Torch.empty(x.getManager(), shape, Torch.scalarType(x));
            long column = 0;
            for (NDArray weight : weights) {
                long count = weight.getShape().get(1);
                try (NDArray columns = Torch.narrow(product, 1, column, count)) {
                    Torch.mmOut(columns, x, weight);
                }
                column += count;
            }
            return product;
        }

        private static boolean isInFloat32(NDArray array) {
            return Float32Matmul.isUsed(array.getDevice(), Torch.scalarType(array));
        }
    }

    /** The weights of an MLP, or of an expert: {@code gateUp} has gates, then values. */
    record Mlp(Linear gateUp, Linear down) {}

    /**
     * The weights of a layer. Norms that the layer does not have are null.
     *
     * @param attentionPostNorm the norm of the attention's result
     * @param sinks a score of each of this rank's heads; null if there are none
     * @param router to the experts; null if the layer has one MLP
     * @param mlps the experts, or the MLP
     * @param mlpPostNorm the norm of the MLP's result
     */
    record Layer(
            NDArray attentionNorm,
            Linear queriesKeysValues,
            NDArray queryNorm,
            NDArray keyNorm,
            NDArray sinks,
            Linear attentionOut,
            NDArray attentionPostNorm,
            NDArray mlpNorm,
            Linear router,
            List<Mlp> mlps,
            NDArray mlpPostNorm) {

        /** Returns the MLP of a layer without experts. */
        Mlp mlp() {
            return mlps.get(0);
        }
    }

    /**
     * Reads a rank's part; the caller closes it.
     *
     * @param files the files, which must have passed {@link WeightMap#check}
     * @param inPlace whether matrices that need not be changed stay in the mapped files, which
     *     ranks then share; if the model is quantized, only the embedding does. All ranks must
     *     agree. Without effect on GPUs. See {@link TensorFiles#view}
     * @param progress receives the number of bytes read, after each tensor
     */
    public static ModelWeights read(
            ModelConfig config,
            int rank,
            int ranks,
            Device device,
            WeightFormat format,
            TensorFiles files,
            boolean inPlace,
            LongConsumer progress) {
        WeightReader reader =
                new WeightReader(config, rank, ranks, device, format, files, inPlace, progress);
        try {
            return reader.read();
        } catch (Throwable e) {
            reader.close();
            throw e;
        }
    }

    Layer layer(int index) {
        return layers.get(index);
    }

    @Override
    public void close() {
        memory.close();
    }
}
