// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.pytorch.jni.JniUtils;
import java.util.List;
import java.util.Optional;
import java.util.stream.IntStream;
import java.util.stream.LongStream;
import org.djlx.llm.model.BlockFiles;
import org.djlx.llm.model.Quantization;
import org.djlx.nativeops.host.CpuKernels;
import org.djlx.nativeops.host.NativeMemory;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * Quantized weights of a projection. Owns the memory, unless it is a {@link #slice}.
 *
 * <ul>
 *   <li>On a GPU: one matrix with float32 scales at {@code scales}, and the kernels {@code gpu}; no
 *       parts.
 *   <li>On the CPU: {@code parts}, packed with their scales, either quantized by this library or
 *       from blocks of the files.
 * </ul>
 */
record QuantizedMatrix(
        NativeMemory memory,
        WeightFormat format,
        long inputs,
        long outputs,
        List<Part> parts,
        long weights,
        long scales,
        Optional<QuantizeKernels> gpu)
        implements AutoCloseable {

    /** Packed weights of some outputs on the CPU; {@code type} is that of {@link CpuKernels}. */
    record Part(int type, long outputs, long weights) {}

    /** The number of outputs that are packed together on the CPU. */
    static final int PANEL = 16;

    private static final int ALIGNMENT = 16; // of scales, for cuBLASLt

    /** Allocates a matrix of shape (outputs, inputs), to be filled by {@link #put}. */
    static QuantizedMatrix allocate(
            Shape shape, WeightFormat format, Optional<QuantizeKernels> gpu) {
        long outputs = shape.get(0);
        long inputs = shape.get(1);
        if (gpu.isEmpty()) {
            boolean isInt8 = format.quantization() == Quantization.INT8;
            int type = isInt8 ? CpuKernels.INT8 : CpuKernels.INT4;
            return allocate(format, inputs, new int[] {type}, outputs);
        }
        long weightBytes = outputs * format.rowBytes(inputs);
        long firstScale = (weightBytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        long scales = outputs * format.rowScales(inputs);
        NativeMemory memory = gpu.get().allocate(firstScale + scales * Float.BYTES);
        long address = memory.address();
        return new QuantizedMatrix(
                memory, format, inputs, outputs, List.of(), address, address + firstScale, gpu);
    }

    private static QuantizedMatrix allocate(
            WeightFormat format, long inputs, int[] types, long... outputs) {
        long[] offsets = new long[types.length + 1];
        for (int i = 0; i < types.length; i++) {
            long bytes = CpuKernels.djlx_cpu_quantized_bytes(types[i], outputs[i], inputs);
            offsets[i + 1] = offsets[i] + bytes;
        }
        NativeMemory memory = NativeMemory.allocateZeros(offsets[types.length], true);
        long address = memory.address();
        List<Part> parts =
                IntStream.range(0, types.length)
                        .mapToObj(i -> new Part(types[i], outputs[i], address + offsets[i]))
                        .toList();
        long sum = LongStream.of(outputs).sum();
        return new QuantizedMatrix(
                memory, format, inputs, sum, parts, address, 0, Optional.empty());
    }

    /**
     * Packs parts of a matrix for a GPU, or for the CPU: each part but the last has a multiple of
     * {@link #PANEL} rows there.
     */
    static QuantizedMatrix pack(
            WeightFormat format,
            long inputs,
            List<BlockFiles.Blocks> rows,
            Optional<QuantizeKernels> gpu) {
        long[] outputs = rows.stream().mapToLong(each -> each.rows().length).toArray();
        int[] types = rows.stream().mapToInt(BlockFiles.Blocks::type).toArray();
        Shape shape = new Shape(LongStream.of(outputs).sum(), inputs);
        QuantizedMatrix matrix =
                gpu.isPresent()
                        ? allocate(shape, format, gpu)
                        : allocate(format, inputs, types, outputs);
        try {
            gpu.ifPresentOrElse(
                    kernels -> matrix.pack(rows, kernels), () -> matrix.packOnCpu(rows));
            return matrix;
        } catch (Throwable e) {
            matrix.close();
            throw e;
        }
    }

    private void packOnCpu(List<BlockFiles.Blocks> rows) {
        try (NDManager manager = NDManager.newBaseManager(Device.cpu())) {
            for (int i = 0; i < rows.size(); i++) {
                Part part = parts.get(i);
                CpuKernels.djlx_cpu_pack(
                        JniUtils.getNumThreads(),
                        part.type,
                        part.outputs,
                        inputs,
                        Torch.dataPointer(manager.create(rows.get(i).rows())),
                        part.weights);
            }
        }
    }

    private void pack(List<BlockFiles.Blocks> rows, QuantizeKernels kernels) {
        long first = 0;
        for (BlockFiles.Blocks each : rows) {
            long end = first + each.rows().length;
            try (NDArray copy = each.copy().toDevice(kernels.gpu(), true)) {
                kernels.pack(Torch.dataPointer(copy), slice(first, end).onGpu());
            }
            first = end;
        }
    }

    /**
     * Quantizes contiguous rows of weights, of shape (outputs, inputs), to the outputs from {@code
     * first} on, a multiple of {@link #PANEL}. On a GPU the rows are those of all outputs, and have
     * the kernels' type.
     */
    void put(long first, NDArray rows) {
        if (gpu.isPresent()) {
            gpu.get().quantize(Torch.dataPointer(rows), onGpu());
            return;
        }
        int type = parts.get(0).type;
        CpuKernels.djlx_cpu_quantize(
                JniUtils.getNumThreads(),
                type,
                Torch.scalarType(rows).code(),
                rows.getShape().get(0),
                inputs,
                Torch.dataPointer(rows),
                weights + CpuKernels.djlx_cpu_quantized_bytes(type, first, inputs));
    }

    QuantizeKernels.Matrix onGpu() {
        return new QuantizeKernels.Matrix(format.bits(), weights, scales, outputs, inputs);
    }

    /** Returns outputs of a matrix on a GPU. */
    QuantizedMatrix slice(long from, long to) {
        return new QuantizedMatrix(
                memory,
                format,
                inputs,
                to - from,
                List.of(),
                weights + from * format.rowBytes(inputs),
                scales + from * format.rowScales(inputs) * Float.BYTES,
                gpu);
    }

    /** Returns a matrix in e4m3 on a GPU as fused operators take it: a view, (inputs, outputs). */
    NDArray operand(NDManager manager) {
        long[] sizes = {inputs, outputs};
        long[] strides = {1, inputs};
        long offset = weights - memory.address();
        return Torch.view(manager, memory, offset, sizes, strides, ScalarType.FLOAT8_E4M3FN);
    }

    /** Returns the scales of the columns of {@link #operand}: a view, (1, outputs). */
    NDArray operandScales(NDManager manager) {
        long offset = scales - memory.address();
        return Torch.view(manager, memory, offset, new Shape(1, outputs), ScalarType.FLOAT32);
    }

    /** Returns the parts as {@link CpuKernels#djlx_cpu_products} takes them; bias is an address. */
    long[] kernelParts(long bias) {
        LongStream.Builder longs = LongStream.builder();
        long first = 0;
        for (Part part : parts) {
            long added = bias == 0 ? 0 : bias + first * Float.BYTES;
            longs.add(part.type).add(part.outputs).add(0).add(part.weights).add(added);
            first += part.outputs;
        }
        return longs.build().toArray();
    }

    /** Returns {@code x weights^T} on the CPU, in the type and manager of x. */
    NDArray multiply(NDArray x) {
        long rows = x.getShape().get(0);
        try (NDArray wide = Torch.empty(x.getManager(), x.getShape(), ScalarType.FLOAT32);
                NDArray longs = x.getManager().create(kernelParts(0));
                NDArray product =
                        Torch.empty(x.getManager(), new Shape(rows, outputs), ScalarType.FLOAT32)) {
            Torch.copy(wide, x);
            CpuKernels.djlx_cpu_products(
                    JniUtils.getNumThreads(),
                    rows,
                    inputs,
                    parts.size(),
                    Torch.dataPointer(longs),
                    outputs,
                    Torch.dataPointer(wide),
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
