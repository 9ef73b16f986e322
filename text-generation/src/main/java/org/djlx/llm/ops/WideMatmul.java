// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.Comparator;
import java.util.List;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaAttribute;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaKernel;
import org.djlx.nativeops.cuda.CudaModule;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.cuda.KernelArguments;
import org.djlx.nativeops.cuda.KernelConstants;
import org.djlx.nativeops.cuda.KernelSource;
import org.djlx.nativeops.cuda.KernelStruct;
import org.djlx.nativeops.cuda.LaunchSize;
import org.djlx.nativeops.cuda.TensorMap;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * Multiplies up to 128 rows by a weight in 16 bits, or up to 64 rows by one in e4m3, with {@code
 * wide_matmul.cu}. For Hopper GPUs. Bit for bit, a row of a product depends neither on the other
 * rows nor on their number. Launches must be on one stream: they share memory. Not thread-safe.
 */
final class WideMatmul {

    static final KernelSource SOURCE =
            KernelSource.ofResource(NativeLibrary.class, "decoder/wide_matmul.cu");

    /** The largest number of rows in 16 bits. */
    static final int MAX_ROWS = 128;

    /** The largest number of rows in e4m3: cuBLASLt is faster for more. */
    static final int MAX_E4M3_ROWS = 64;

    private static final KernelConstants CONSTANTS = new KernelConstants(SOURCE);
    private static final KernelConstants.Layout MATMUL = CONSTANTS.struct("WideMatmul");
    static final int BOX_BYTES = CONSTANTS.value("BOX_BYTES"); // bytes of a row of a k-block
    static final int THREADS = CONSTANTS.value("THREADS");
    private static final int FEW_ROWS = CONSTANTS.value("GROUP_ROWS"); // 64: the smaller variants
    private static final int RING_BYTES_64 = CONSTANTS.value("RING_BYTES_64");
    private static final int RING_BYTES_128 = CONSTANTS.value("RING_BYTES_128");
    private static final int SHARING_BLOCKS = 144; // with clusters = 2, at most: SMs of a GPU
    private static final int MAX_PARTIAL_SUMS = CONSTANTS.value("MAX_PARTIAL_SUMS"); // of a block
    static final int QUARTERS = 4; // of a tile's columns: a box of the weight has one

    /** As many bytes as an SM reads while two clusters add their sums. */
    private static final int ADDING_BYTES = 96 << 10;

    private final ScalarType type; // of x and the weight
    private final int maxRows;
    private final int multiprocessors;
    private final List<Variant> variants;
    private final NDArray partialSums; // with one more element a block, for partial_sums_written
    private final KernelStruct struct = new KernelStruct(MATMUL.byteSize());
    private final KernelArguments arguments = new KernelArguments();

    /**
     * A variant of the kernel: the largest number of rows of x, 64 or {@value #MAX_ROWS}; the rows
     * of the weight in a tile; the thread blocks of a cluster, and the clusters, that share a tile.
     */
    private record Variant(CudaKernel kernel, int rows, int columns, int cluster, int clusters) {

        int sharedBytes() {
            return ringBytes(rows);
        }

        int blocks(long weightRows) {
            return Math.toIntExact(ceilDiv(weightRows, columns) * cluster * clusters);
        }

        /**
         * Returns an estimate of the time, as the bytes that the busiest SM reads: those of the
         * weight, half of those of x, which come from L2, and {@link #ADDING_BYTES} for two
         * clusters. An SM runs one thread block at a time. x always counts as {@value #MAX_ROWS}
         * rows, so every number of rows gets the same clusters, hence the same bits.
         */
        double cost(long weightRows, long rowBytes, int multiprocessors) {
            long waves = ceilDiv(blocks(weightRows), multiprocessors);
            double read = (double) rowBytes * (columns + MAX_ROWS / 2) / (cluster * clusters);
            return waves * (read + (clusters - 1) * ADDING_BYTES);
        }

        boolean isFor(int xRows, long weightRows, long rowBytes) {
            int most = xRows <= FEW_ROWS ? FEW_ROWS : MAX_ROWS;
            boolean hasKBlockForEach = rowBytes >= (long) cluster * clusters * BOX_BYTES;
            boolean canShare = blocks(weightRows) <= SHARING_BLOCKS && hasKBlockForEach;
            return rows == most && (clusters == 1 || canShare);
        }
    }

    /** Returns the shared memory of a thread block that multiplies 64 rows, or 128. */
    static int ringBytes(int rows) {
        return rows == FEW_ROWS ? RING_BYTES_64 : RING_BYTES_128;
    }

    /** Allocates 5 MB, which {@code manager} owns, and clears it on the current stream. */
    WideMatmul(
            CudaDevice device,
            CudaModule module,
            ScalarType type,
            int weightBits,
            NDManager manager) {
        partialSums = manager.zeros(new Shape(SHARING_BLOCKS, MAX_PARTIAL_SUMS + 1));
        boolean e4m3 = weightBits == 8;
        this.type = e4m3 ? ScalarType.FLOAT8_E4M3FN : type;
        maxRows = e4m3 ? MAX_E4M3_ROWS : MAX_ROWS;
        multiprocessors = device.attribute(CudaAttribute.MULTIPROCESSOR_COUNT);
        variants =
                CONSTANTS.calls("WIDE_MATMUL").stream()
                        .filter(call -> call[0] <= maxRows)
                        .map(call -> load(module, call))
                        .toList();
    }

    private static Variant load(CudaModule module, int[] call) {
        String name =
                "decode_wide_matmul_%d_%d_%d_%d".formatted(call[0], call[1], call[2], call[3]);
        Variant variant = new Variant(module.kernel(name), call[0], call[1], call[2], call[3]);
        variant.kernel.allowSharedMemory(variant.sharedBytes());
        variant.kernel.preferSharedMemory(); // as LoRA's kernels, or they cannot share an SM
        return variant;
    }

    /**
     * Returns whether the kernel supports {@code rows} and an output of {@code width} columns, with
     * rows {@code stride} elements apart.
     */
    boolean isFor(int rows, long width, long stride) {
        return rows <= maxRows && width % 2 == 0 && stride % 2 == 0;
    }

    /** Returns whether two clusters share a tile: for tests. */
    boolean sharesTiles(int rows, QuantizeKernels.Matrix weight) {
        return cheapest(rows, weight).clusters > 1;
    }

    private Variant cheapest(int rows, QuantizeKernels.Matrix weight) {
        long rowBytes = weight.depth() * type.itemSize();
        return variants.stream()
                .filter(variant -> variant.isFor(rows, weight.rows(), rowBytes))
                .min(
                        Comparator.comparingDouble(
                                one -> one.cost(weight.rows(), rowBytes, multiprocessors)))
                .orElseThrow();
    }

    /**
     * Computes {@code output = x weightᵀ + bias + addend}, or {@code silu(x gatesᵀ) * (x valuesᵀ)}
     * with bias and addend of both. Programmatic dependent launch: the weight and its scales are
     * read while the previous kernel still runs, so they must be complete before that kernel
     * starts. Arrays are given by address: x and the weight are aligned to 16 bytes, the output to
     * 4.
     *
     * @param gated whether the weight holds the rows of the gates, then as many of the values
     * @param x the rows, as many as {@link #isFor} allows; a scale for each if in e4m3
     * @param addend added to the sums
     */
    void launch(
            CudaStream stream,
            boolean gated,
            QuantizeKernels.Matrix x,
            QuantizeKernels.Matrix weight,
            long bias,
            long output,
            long stride,
            DecoderKernels.Addend addend) {
        Variant variant = cheapest(Math.toIntExact(x.rows()), weight);
        putTensorMap("weight", weight, variant.columns / QUARTERS);
        putTensorMap("x", x, variant.rows);
        put("weight_scales", weight.scales());
        put("x_scales", x.scales());
        put("output", output);
        put("bias", bias);
        put("batch", x.rows());
        put("width", gated ? weight.rows() / 2 : weight.rows());
        put("depth", x.depth());
        put("stride", stride);
        put("gated", gated ? 1 : 0);
        addend.putTo(this::put);
        long sums = (long) SHARING_BLOCKS * MAX_PARTIAL_SUMS;
        put("partial_sums", Torch.dataPointer(partialSums));
        put("partial_sums_written", Torch.dataPointer(partialSums) + sums * Float.BYTES);
        LaunchSize size =
                LaunchSize.of(variant.blocks(weight.rows()), THREADS)
                        .withShared(variant.sharedBytes());
        variant.kernel.launch(stream, size.asDependent(), arguments.clear().add(struct));
    }

    private void putTensorMap(String member, QuantizeKernels.Matrix matrix, int boxRows) {
        long[] sizes = {matrix.depth(), matrix.rows()};
        long[] strides = {matrix.depth() * type.itemSize()};
        int boxColumns = BOX_BYTES / type.itemSize();
        new TensorMap(struct, MATMUL.offset(member), type, sizes, strides, boxColumns, boxRows)
                .place(matrix.elements());
    }

    private void put(String member, long value) {
        struct.put(MATMUL.offset(member), value);
    }

    private static long ceilDiv(long a, long b) {
        return (a + b - 1) / b;
    }
}
