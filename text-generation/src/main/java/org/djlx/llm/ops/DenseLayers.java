// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.core.Linear;
import ai.djl.pytorch.jni.JniUtils;
import java.util.List;
import java.util.Optional;
import org.djlx.llm.model.EncoderConfig.Activation;
import org.djlx.llm.ops.EncoderWeights.Norm;
import org.djlx.llm.ops.EncoderWeights.Projection;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.host.CpuKernels;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/** One or two projections of an encoder's tokens, with an activation between two. */
sealed interface DenseLayers {

    NDArray apply(NDArray x);

    /** Computes the norm of the sum of {@code residual} and the result; the sum without a norm. */
    NDArray addTo(NDArray residual, NDArray x);

    /**
     * Returns the fastest implementation. It may replace the weights by others.
     *
     * @param manager owns the weights
     */
    static DenseLayers of(
            NDManager manager, Activation activation, Optional<Norm> norm, Projection... layers) {
        boolean isFloat = Torch.scalarType(layers[0].weight()) == ScalarType.FLOAT32;
        if (isFloat
                && !manager.getDevice().isGpu()
                && NativeLibrary.CPU_KERNELS.isAvailable()
                && CpuKernels.djlx_cpu_split_bytes(1, 1) > 0) {
            return new Split(manager, activation, norm, List.of(layers));
        }
        return new Operators(activation, norm, List.of(layers));
    }

    /** By libtorch. */
    record Operators(Activation activation, Optional<Norm> norm, List<Projection> layers)
            implements DenseLayers {

        @Override
        public NDArray apply(NDArray x) {
            NDArray result = multiply(layers.get(0), x);
            for (Projection layer : layers.subList(1, layers.size())) {
                result = multiply(layer, PackedEncoder.activate(activation, result));
            }
            return result;
        }

        private static NDArray multiply(Projection layer, NDArray x) {
            return Linear.linear(x, layer.weight(), layer.bias()).singletonOrThrow();
        }

        @Override
        public NDArray addTo(NDArray residual, NDArray x) {
            NDArray sum = apply(x).addi(residual);
            return norm.map(each -> each.apply(sum)).orElse(sum);
        }
    }

    /** By {@link CpuKernels#djlx_cpu_layers}, in one pass. */
    final class Split implements DenseLayers {

        private final Optional<Norm> norm;
        private final NDArray layers; // longs, as the kernel takes them
        private final int count;
        private final long outputs;

        private Split(
                NDManager manager,
                Activation activation,
                Optional<Norm> norm,
                List<Projection> projections) {
            this.norm = norm;
            count = projections.size();
            outputs = projections.get(count - 1).weight().getShape().get(0);
            long[] longs = new long[count * CpuKernels.LAYER_LONGS];
            for (int i = 0; i < count; i++) {
                NDArray weight = projections.get(i).weight();
                NDArray bias = projections.get(i).bias();
                long rows = weight.getShape().get(0);
                long columns = weight.getShape().get(1);
                Shape shape = new Shape(CpuKernels.djlx_cpu_split_bytes(rows, columns));
                NDArray split = Torch.empty(manager, shape, ScalarType.UINT8);
                CpuKernels.djlx_cpu_split(
                        JniUtils.getNumThreads(),
                        rows,
                        columns,
                        Torch.dataPointer(weight),
                        Torch.dataPointer(split));
                int at = i * CpuKernels.LAYER_LONGS;
                longs[at] = columns;
                longs[at + 1] = rows;
                longs[at + 2] = i + 1 < count ? code(activation) : 0;
                longs[at + 3] = Torch.dataPointer(split);
                longs[at + 4] = bias == null ? 0 : Torch.dataPointer(bias);
                weight.close();
            }
            layers = manager.create(longs);
        }

        private static int code(Activation activation) {
            return switch (activation) {
                case GELU -> CpuKernels.GELU;
                case GELU_TANH -> CpuKernels.GELU_TANH;
                case RELU -> CpuKernels.RELU;
                case SILU -> CpuKernels.SILU;
            };
        }

        @Override
        public NDArray apply(NDArray x) {
            return apply(x, 0, Optional.empty());
        }

        @Override
        public NDArray addTo(NDArray residual, NDArray x) {
            return apply(x, Torch.dataPointer(residual), norm);
        }

        private NDArray apply(NDArray x, long residual, Optional<Norm> by) {
            long rows = x.getShape().get(0);
            Shape shape = new Shape(rows, outputs);
            NDArray out = Torch.empty(x.getManager(), shape, ScalarType.FLOAT32);
            CpuKernels.djlx_cpu_layers(
                    JniUtils.getNumThreads(),
                    rows,
                    count,
                    Torch.dataPointer(layers),
                    Torch.dataPointer(x),
                    residual,
                    by.map(each -> Torch.dataPointer(each.weight())).orElse(0L),
                    by.map(each -> Torch.dataPointer(each.bias())).orElse(0L),
                    by.map(Norm::epsilon).orElse(0f),
                    Torch.dataPointer(out));
            return out;
        }
    }
}
