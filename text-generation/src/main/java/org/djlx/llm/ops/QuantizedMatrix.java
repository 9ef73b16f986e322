// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import ai.djl.pytorch.jni.JniUtils;
import java.util.Optional;
import org.djlx.llm.model.Quantization;
import org.djlx.nativeops.host.CpuKernels;
import org.djlx.nativeops.host.NativeMemory;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * Quantized weights of a projection, with scales in float32. Owns the memory, unless it is a {@link
 * #slice}. On the CPU the scales are beside the weights, their address is 0 and there are no
 * kernels of a {@code gpu}.
 */
record QuantizedMatrix(
        NativeMemory memory,
        Quantization quantization,
        long inputs,
        long outputs,
        long weights,
        long scales,
        Optional<QuantizeKernels> gpu)
        implements AutoCloseable {

    /** The outputs that are stored together on the CPU. */
    static final int PANEL = 16;

    private static final int ALIGNMENT = 16; // of scales, for cuBLASLt

    /** Allocates a matrix of shape (outputs, inputs), to be filled by {@link #put}. */
    static QuantizedMatrix allocate(
            Shape shape, Quantization quantization, Optional<QuantizeKernels> gpu) {
        long outputs = shape.get(0);
        long inputs = shape.get(1);
        if (gpu.isEmpty()) {
            long bytes = CpuKernels.quantizedBytes(type(quantization), outputs, inputs);
            NativeMemory memory = NativeMemory.allocateZeros(bytes, true);
            return new QuantizedMatrix(
                    memory, quantization, inputs, outputs, memory.address(), 0, gpu);
        }
        int bits = quantization.gpuBits();
        long weightBytes = outputs * QuantizeKernels.rowBytes(bits, inputs);
        long firstScale = (weightBytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        long scales = outputs * QuantizeKernels.rowScales(bits, inputs);
        NativeMemory memory = gpu.get().allocate(firstScale + scales * Float.BYTES);
        long address = memory.address();
        return new QuantizedMatrix(
                memory, quantization, inputs, outputs, address, address + firstScale, gpu);
    }

    /**
     * Quantizes weights of outputs from {@code first} on, a multiple of {@link #PANEL}: contiguous
     * rows of shape (outputs, inputs); on a GPU of all outputs, and of the type of the kernels.
     */
    void put(long first, NDArray rows) {
        if (gpu.isPresent()) {
            gpu.get().quantize(Torch.dataPointer(rows), onGpu());
            return;
        }
        CpuKernels.djlx_cpu_quantize(
                JniUtils.getNumThreads(),
                type(),
                Torch.scalarType(rows).code(),
                rows.getShape().get(0),
                inputs,
                Torch.dataPointer(rows),
                weights + CpuKernels.quantizedBytes(type(), first, inputs));
    }

    QuantizeKernels.Matrix onGpu() {
        return new QuantizeKernels.Matrix(quantization.gpuBits(), weights, scales, outputs, inputs);
    }

    /** Returns outputs of a matrix on a GPU. */
    QuantizedMatrix slice(long from, long to) {
        int bits = quantization.gpuBits();
        return new QuantizedMatrix(
                memory,
                quantization,
                inputs,
                to - from,
                weights + from * QuantizeKernels.rowBytes(bits, inputs),
                scales + from * QuantizeKernels.rowScales(bits, inputs) * Float.BYTES,
                gpu);
    }

    /** Returns the type on the CPU: {@link CpuKernels#INT8} or {@link CpuKernels#INT4}. */
    int type() {
        return type(quantization);
    }

    private static int type(Quantization quantization) {
        return quantization == Quantization.INT8 ? CpuKernels.INT8 : CpuKernels.INT4;
    }

    /** Returns {@code x weights^T} on the CPU, in the type and manager of x. */
    NDArray multiply(NDArray x) {
        long rows = x.getShape().get(0);
        try (NDArray wide = Torch.empty(x.getManager(), x.getShape(), ScalarType.FLOAT32);
                NDArray product =
                        Torch.empty(x.getManager(), new Shape(rows, outputs), ScalarType.FLOAT32)) {
            Torch.copy(wide, x);
            CpuKernels.djlx_cpu_product(
                    JniUtils.getNumThreads(),
                    type(),
                    rows,
                    inputs,
                    outputs,
                    0,
                    outputs,
                    Torch.dataPointer(wide),
                    weights,
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
