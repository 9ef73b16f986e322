// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import ai.djl.pytorch.jni.JniUtils;
import java.util.List;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.host.CpuKernels;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * Matmuls of 16-bit prompts and weights on CPUs without AVX-512, in float32 and rounded once.
 * libtorch computes 16-bit matmuls there as one dot product at a time: a prompt of 512 tokens took
 * 3.8 times as long.
 */
final class Float32Matmul {

    private static final ScalarType FLOAT = ScalarType.FLOAT32;
    private static final long BLOCK_ELEMENTS = 1 << 20; // of weights that are float32 at a time
    private static final long KERNEL_ROWS = 32; // the most for which kernels are faster

    private Float32Matmul() {}

    /** Returns whether arrays of this type are multiplied in float32. */
    static boolean isUsed(Device device, ScalarType type) {
        return !device.isGpu()
                && type.itemSize() == 2
                && NativeLibrary.CPU_KERNELS.isAvailable()
                && !CpuKernels.hasAvx512();
    }

    /** Returns an array in float32 if it is to be multiplied in float32, otherwise the array. */
    static NDArray widened(NDArray array) {
        boolean wide = isUsed(array.getDevice(), Torch.scalarType(array));
        return wide ? Torch.cast(array, FLOAT) : array;
    }

    /**
     * Returns {@code x weights}, in the type and manager of x, of shape (rows, inputs). The weights
     * have some of the outputs each, of shape (inputs, outputs).
     */
    static NDArray multiply(NDArray x, List<NDArray> weights, long outputs) {
        long rows = x.getShape().get(0);
        try (NDArray wide = Torch.cast(x, FLOAT);
                NDArray product = Torch.empty(x.getManager(), new Shape(rows, outputs), FLOAT)) {
            long first = 0;
            for (NDArray weight : weights) {
                if (rows <= KERNEL_ROWS) {
                    multiplyByKernel(wide, weight, product, first);
                } else {
                    multiplyBlocks(wide, weight, product, first);
                }
                first += weight.getShape().get(1);
            }
            return Torch.cast(product, Torch.scalarType(x));
        }
    }

    /** Writes columns of the product, from column {@code first} on. */
    private static void multiplyByKernel(NDArray x, NDArray weight, NDArray product, long first) {
        CpuKernels.djlx_cpu_product(
                JniUtils.getNumThreads(),
                Torch.scalarType(weight).code(),
                x.getShape().get(0),
                weight.getShape().get(0),
                weight.getShape().get(1),
                Torch.info(weight).strides()[1],
                product.getShape().get(1),
                Torch.dataPointer(x),
                Torch.dataPointer(weight),
                0,
                0,
                Torch.dataPointer(product) + first * Float.BYTES);
    }

    /** As {@link #multiplyByKernel}, by libtorch, with some columns of the weight at a time. */
    private static void multiplyBlocks(NDArray x, NDArray weight, NDArray product, long first) {
        long inputs = weight.getShape().get(0);
        long outputs = weight.getShape().get(1);
        long most = Math.max(1, BLOCK_ELEMENTS / inputs);
        try (NDArray block = Torch.empty(x.getManager(), new Shape(most, inputs), FLOAT)) {
            for (long from = 0; from < outputs; from += most) {
                long count = Math.min(most, outputs - from);
                try (NDArray part = Torch.narrow(weight, 1, from, count);
                        NDArray rows = Torch.narrow(block, 0, 0, count);
                        NDArray factor = rows.transpose();
                        NDArray columns = Torch.narrow(product, 1, first + from, count)) {
                    Torch.copy(factor, part);
                    Torch.mmOut(columns, x, factor);
                }
            }
        }
    }
}
