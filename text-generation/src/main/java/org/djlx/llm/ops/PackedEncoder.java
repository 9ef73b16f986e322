// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.ndarray.types.SparseFormat;
import ai.djl.nn.core.Embedding;
import ai.djl.pytorch.jni.JniUtils;
import java.util.List;
import java.util.Optional;
import java.util.stream.LongStream;
import org.djlx.llm.model.EncoderConfig;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.host.CpuKernels;
import org.djlx.nativeops.torch.BlockMath;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/** What encoders share: they attend in both directions. */
abstract class PackedEncoder extends SequenceEncoder {

    final EncoderConfig.Sizes sizes;
    private final EncoderWeights weights; // owns the memory

    /** Takes ownership of the weights. */
    PackedEncoder(EncoderConfig.Sizes sizes, EncoderWeights weights) {
        this.sizes = sizes;
        this.weights = weights;
    }

    @Override
    public int hiddenSize() {
        return sizes.hidden();
    }

    @Override
    public int vocabularySize() {
        return sizes.vocabulary();
    }

    @Override
    public int maxLength() {
        return sizes.maxLength();
    }

    @Override
    public Device device() {
        return weights.manager().getDevice();
    }

    @Override
    public void close() {
        weights.close();
    }

    /** Returns rows of a table of embeddings. */
    static NDArray rows(NDManager manager, NDArray table, long[] indices) {
        try (NDArray index = manager.create(indices)) {
            return Embedding.embedding(index, table, SparseFormat.DENSE).singletonOrThrow();
        }
    }

    /** Returns projections without a norm after them. */
    final DenseLayers dense(EncoderWeights.Projection... layers) {
        return DenseLayers.of(weights.manager(), sizes.activation(), Optional.empty(), layers);
    }

    /** Returns projections with a norm after {@link DenseLayers#addTo}. */
    final DenseLayers dense(EncoderWeights.Norm norm, EncoderWeights.Projection... layers) {
        return DenseLayers.of(weights.manager(), sizes.activation(), Optional.of(norm), layers);
    }

    static NDArray activate(EncoderConfig.Activation activation, NDArray x) {
        return switch (activation) {
            case GELU -> x.getNDArrayInternal().gelu();
            case GELU_TANH -> BlockMath.gelu(x);
            case RELU -> x.getNDArrayInternal().relu();
            case SILU -> Torch.silu(x);
        };
    }

    /** Computes attention within the sequences of a group. */
    interface Attention {
        /** Arguments and result have the shape (sequences, heads, tokens, head size). */
        NDArray apply(NDArray queries, NDArray keys, NDArray values);
    }

    /** Computes attention of all tokens of a sequence to each other. */
    final NDArray attend(NDArray queriesKeysValues, List<Group> groups) {
        NDArray heads = queriesKeysValues.reshape(-1, 3, sizes.heads(), sizes.headSize());
        if (device().isGpu()
                || Torch.scalarType(heads) != ScalarType.FLOAT32
                || !NativeLibrary.CPU_KERNELS.isAvailable()) {
            return attend(heads, groups, (q, k, v) -> Torch.attention(q, k, v, false));
        }
        long tokens = heads.getShape().get(0);
        NDManager manager = heads.getManager();
        long[] starts =
                LongStream.concat(
                                groups.stream().flatMapToLong(Group::starts), LongStream.of(tokens))
                        .toArray();
        NDArray out = Torch.empty(manager, new Shape(tokens, sizes.hidden()), ScalarType.FLOAT32);
        try (NDArray array = manager.create(starts)) {
            CpuKernels.djlx_cpu_encoder_attention(
                    JniUtils.getNumThreads(),
                    starts.length - 1,
                    sizes.heads(),
                    sizes.headSize(),
                    Torch.dataPointer(array),
                    (float) (1 / Math.sqrt(sizes.headSize())),
                    Torch.dataPointer(heads),
                    Torch.dataPointer(out));
        }
        return out;
    }

    /**
     * Computes attention of all groups.
     *
     * @param queriesKeysValues of shape (tokens, 3, heads, head size)
     * @return the heads' results, of shape (tokens, hidden size)
     */
    final NDArray attend(NDArray queriesKeysValues, List<Group> groups, Attention attention) {
        NDList outputs = new NDList();
        for (Group group : groups) {
            NDArray heads =
                    Torch.narrow(queriesKeysValues, 0, group.first(), group.tokens())
                            .reshape(
                                    group.sequences(),
                                    group.length(),
                                    3,
                                    sizes.heads(),
                                    sizes.headSize())
                            .transpose(2, 0, 3, 1, 4);
            NDArray[] parts = new NDArray[3];
            for (int i = 0; i < parts.length; i++) {
                parts[i] = heads.get(i);
            }
            outputs.add(
                    attention
                            .apply(parts[0], parts[1], parts[2])
                            .transpose(0, 2, 1, 3)
                            .reshape(group.tokens(), sizes.hidden()));
        }
        return outputs.size() == 1 ? outputs.get(0) : NDArrays.concat(outputs, 0);
    }
}
