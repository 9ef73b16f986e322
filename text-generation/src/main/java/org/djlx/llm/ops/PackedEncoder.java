// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.pytorch.jni.JniUtils;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.function.UnaryOperator;
import org.djlx.llm.model.EncoderConfig;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaAttribute;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.host.CpuKernels;
import org.djlx.nativeops.torch.BlockMath;
import org.djlx.nativeops.torch.PackedSequences;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/** Base class of encoders: attention in both directions, by the fastest path of the device. */
abstract class PackedEncoder extends SequenceEncoder {

    final EncoderConfig.Sizes sizes;
    private final EncoderWeights weights; // owns the memory
    final boolean hasFlashAttention; // whether flashAttention() supports the device and type

    /** Takes ownership of the weights. */
    PackedEncoder(EncoderConfig.Sizes sizes, EncoderWeights weights) {
        super(sizes.hidden(), sizes.vocabulary(), sizes.maxLength(), weights.manager().getDevice());
        this.sizes = sizes;
        this.weights = weights;
        hasFlashAttention =
                device().isGpu()
                        && sizes.type() != ScalarType.FLOAT32
                        && sizes.headSize() % 8 == 0
                        && sizes.headSize() <= 256
                        && isAmpereOrLater(device());
    }

    /**
     * Returns whether a GPU has compute capability 8.0 or later, as FlashAttention needs. Without
     * the CUDA presets that is not known, and taken for granted.
     */
    private static boolean isAmpereOrLater(Device gpu) {
        if (!NativeLibrary.CUDA_PRESETS.isAvailable()) {
            return true;
        }
        try (CudaDevice device = CudaDevice.open(gpu)) {
            return device.attribute(CudaAttribute.COMPUTE_CAPABILITY_MAJOR) >= 8;
        }
    }

    @Override
    public void close() {
        weights.close();
    }

    /** Returns rows of a table of embeddings. */
    static NDArray rows(NDManager manager, NDArray table, long[] indices) {
        try (NDArray index = manager.create(indices)) {
            return rows(table, index);
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

    /**
     * Returns the attention of all tokens of a sequence to each other, for all layers of a batch:
     * from queries, keys and values of shape (tokens, 3 * hidden size) to (tokens, hidden size).
     */
    final UnaryOperator<NDArray> attention(NDManager manager, List<Group> groups) {
        UnaryOperator<NDArray> ofHeads = attentionOfHeads(manager, groups);
        return x -> ofHeads.apply(x.reshape(-1, 3, sizes.heads(), sizes.headSize()));
    }

    private UnaryOperator<NDArray> attentionOfHeads(NDManager manager, List<Group> groups) {
        boolean isFloat32 = sizes.type() == ScalarType.FLOAT32;
        if (hasFlashAttention) {
            return flashAttention(manager, groups, -1);
        }
        if (device().isGpu() && groups.size() > 1) {
            return new PaddedSequences(manager, sizes.type(), groups)::attend;
        }
        if (device().isGpu() || !isFloat32 || !NativeLibrary.CPU_KERNELS.isAvailable()) {
            return x -> attend(x, groups, (q, k, v) -> Torch.attention(q, k, v, false));
        }
        long[] starts = groups.stream().flatMapToLong(Group::starts).toArray();
        Group last = groups.get(groups.size() - 1);
        long[] bounds = Arrays.copyOf(starts, starts.length + 1);
        bounds[starts.length] = last.first() + last.tokens();
        NDArray array = manager.create(bounds);
        return x -> attendByKernel(x, array);
    }

    /**
     * Returns the attention of tokens to those at most {@code reach} before or after them in their
     * sequence, -1 for all: from the shape (tokens, 3, heads, head size) to (tokens, hidden size).
     */
    static UnaryOperator<NDArray> flashAttention(NDManager manager, List<Group> groups, int reach) {
        int[] lengths =
                groups.stream()
                        .flatMapToInt(of -> of.starts().mapToInt(i -> (int) of.length()))
                        .toArray();
        PackedSequences packed = new PackedSequences(manager, lengths, lengths);
        return heads -> {
            NDList parts = heads.transpose(1, 2, 0, 3).split(3, 0); // (1, heads, tokens, size)
            return Torch.attentionWithin(parts.get(0), parts.get(1), parts.get(2), packed, reach)
                    .transpose(0, 2, 1, 3)
                    .reshape(heads.getShape().get(0), -1);
        };
    }

    private NDArray attendByKernel(NDArray heads, NDArray bounds) {
        Shape shape = new Shape(heads.getShape().get(0), sizes.hidden());
        NDArray out = Torch.empty(heads.getManager(), shape, ScalarType.FLOAT32);
        CpuKernels.djlx_cpu_encoder_attention(
                JniUtils.getNumThreads(),
                bounds.size() - 1,
                sizes.heads(),
                sizes.headSize(),
                Torch.dataPointer(bounds),
                (float) (1 / Math.sqrt(sizes.headSize())),
                Torch.dataPointer(heads),
                Torch.dataPointer(out));
        return out;
    }

    /**
     * Computes attention of all groups.
     *
     * @param queriesKeysValues of shape (tokens, 3, heads, head size)
     * @return the heads' results, of shape (tokens, hidden size)
     */
    static NDArray attend(NDArray queriesKeysValues, List<Group> groups, Attention attention) {
        NDList outputs = new NDList();
        for (Group group : groups) {
            NDArray own = Torch.narrow(queriesKeysValues, 0, group.first(), group.tokens());
            outputs.add(attend(own, group.length(), attention));
        }
        return outputs.size() == 1 ? outputs.get(0) : NDArrays.concat(outputs, 0);
    }

    /** As the other {@code attend}, of sequences of one length. */
    static NDArray attend(NDArray queriesKeysValues, long length, Attention attention) {
        Shape shape = queriesKeysValues.getShape();
        NDArray heads =
                queriesKeysValues
                        .reshape(-1, length, 3, shape.get(2), shape.get(3))
                        .transpose(2, 0, 3, 1, 4);
        return attention
                .apply(heads.get(0), heads.get(1), heads.get(2))
                .transpose(0, 2, 1, 3)
                .reshape(shape.get(0), -1);
    }
}
