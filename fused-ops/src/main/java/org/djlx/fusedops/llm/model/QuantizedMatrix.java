// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.model;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import ai.djl.pytorch.jni.JniUtils;
import org.djlx.nativeops.host.CpuKernels;
import org.djlx.nativeops.host.NativeMemory;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * Quantized weights of a projection on the CPU.
 *
 * @param memory the weights and their scales; owned
 * @param type {@link CpuKernels#INT8} or {@link CpuKernels#INT4}
 */
record QuantizedMatrix(NativeMemory memory, int type, long inputs, long outputs)
        implements AutoCloseable {

    /**
     * Quantizes weights.
     *
     * @param weights of shape (outputs, inputs), contiguous
     */
    static QuantizedMatrix of(NDArray weights, Quantization quantization) {
        int type = quantization == Quantization.INT8 ? CpuKernels.INT8 : CpuKernels.INT4;
        long outputs = weights.getShape().get(0);
        long inputs = weights.getShape().get(1);
        long bytes = CpuKernels.quantizedBytes(type, outputs, inputs);
        NativeMemory memory = NativeMemory.allocateZeros(bytes, true);
        CpuKernels.djlx_cpu_quantize(
                JniUtils.getNumThreads(),
                type,
                Torch.scalarType(weights).code(),
                outputs,
                inputs,
                Torch.dataPointer(weights),
                memory.address());
        return new QuantizedMatrix(memory, type, inputs, outputs);
    }

    /** Returns {@code x weights^T} in the type and manager of x; see {@link Quantization}. */
    NDArray multiply(NDArray x) {
        long rows = x.getShape().get(0);
        try (NDArray wide = Torch.empty(x.getManager(), x.getShape(), ScalarType.FLOAT32);
                NDArray product =
                        Torch.empty(x.getManager(), new Shape(rows, outputs), ScalarType.FLOAT32)) {
            Torch.copy(wide, x);
            CpuKernels.djlx_cpu_product(
                    JniUtils.getNumThreads(),
                    type,
                    rows,
                    inputs,
                    outputs,
                    0,
                    Torch.dataPointer(wide),
                    memory.address(),
                    0,
                    0,
                    Torch.dataPointer(product));
            return Torch.cast(product, Torch.scalarType(x));
        }
    }

    @Override
    public void close() {
        memory.close();
    }
}
