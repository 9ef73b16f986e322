// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal;

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

/**
 * Multiplies up to 128 rows by a weight of 16 bits, with {@code wide_matmul.cu}. For Hopper GPUs.
 * Bit for bit, a row of a product depends neither on the other rows nor on their number. Not
 * thread-safe.
 */
public final class WideMatmul {

    static final KernelSource SOURCE =
            KernelSource.ofResource(NativeLibrary.class, "decoder/wide_matmul.cu");

    /** The largest number of rows; half of the variants have half of it. */
    public static final int MAX_ROWS = 128;

    private static final KernelConstants CONSTANTS = new KernelConstants(SOURCE);
    private static final KernelConstants.Layout MATMUL = CONSTANTS.struct("WideMatmul");
    private static final int K = CONSTANTS.value("K"); // columns of a k-block
    private static final int THREADS = CONSTANTS.value("THREADS");
    private static final int SHARED_BYTES = CONSTANTS.value("SHARED_BYTES");

    private final ScalarType type;
    private final int multiprocessors;
    private final List<Variant> variants;
    private final KernelStruct struct = new KernelStruct(MATMUL.byteSize());
    private final KernelArguments arguments = new KernelArguments();

    /**
     * A variant of the kernel.
     *
     * @param rows the largest number of rows of x, {@value #MAX_ROWS} or half of it
     * @param columns the rows of the weight in a tile
     * @param cluster the thread blocks that share a tile
     */
    private record Variant(CudaKernel kernel, int rows, int columns, int cluster) {

        int blocks(long weightRows) {
            return Math.toIntExact(ceilDiv(weightRows, columns) * cluster);
        }

        /**
         * Returns the cost in rows that an SM reads: those of the weight, and up to 128 of x, which
         * come from L2 and count half. An SM runs one thread block at a time. The number of rows
         * does not count: for the same bits, the cluster must be the same for all numbers.
         */
        double cost(long weightRows, int multiprocessors) {
            long waves = ceilDiv(blocks(weightRows), multiprocessors);
            return (double) waves * (columns + MAX_ROWS / 2) / cluster;
        }
    }

    WideMatmul(CudaDevice device, CudaModule module, ScalarType type) {
        this.type = type;
        multiprocessors = device.attribute(CudaAttribute.MULTIPROCESSOR_COUNT);
        variants =
                CONSTANTS.calls("WIDE_MATMUL").stream().map(call -> variant(module, call)).toList();
    }

    private static Variant variant(CudaModule module, int[] call) {
        String name = "decode_wide_matmul_%d_%d_%d".formatted(call[0], call[1], call[2]);
        CudaKernel kernel = module.kernel(name);
        kernel.allowSharedMemory(SHARED_BYTES);
        return new Variant(kernel, call[0], call[1], call[2]);
    }

    /**
     * Returns whether the kernel supports a matmul.
     *
     * @param width the columns of the output
     * @param stride the distance between rows of the output, in elements
     */
    public boolean isFor(int rows, long width, long stride) {
        return rows <= MAX_ROWS && width % 2 == 0 && stride % 2 == 0;
    }

    private Variant variant(int rows, long weightRows) {
        int most = rows <= MAX_ROWS / 2 ? MAX_ROWS / 2 : MAX_ROWS;
        return variants.stream()
                .filter(variant -> variant.rows == most)
                .min(Comparator.comparingDouble(of -> of.cost(weightRows, multiprocessors)))
                .orElseThrow();
    }

    /**
     * Multiplies as {@link DecoderKernels#matmul} does. Arrays are given by address, aligned to 16
     * bytes. Programmatic dependent launch: the weight is read while the kernel before still runs.
     *
     * @param gated whether the weight holds the rows of the gates, then the rows of the values
     * @param rows the number of rows, allowed by {@link #isFor}
     * @param output the output: rows of {@code width}, {@code stride} elements apart
     * @param x the rows, of shape (rows, depth)
     * @param weight the weight, of shape (width, depth), or (2 width, depth) if gated
     * @param bias the bias, of shape (width), or (2 width) if gated; 0 for none
     * @param depth the inner dimension, a multiple of 8
     */
    public void launch(
            CudaStream stream,
            boolean gated,
            int rows,
            long output,
            long x,
            long weight,
            long bias,
            long width,
            long depth,
            long stride) {
        long weightRows = gated ? 2 * width : width;
        Variant variant = variant(rows, weightRows);
        int boxRows = gated ? variant.columns / 4 : variant.columns;
        place("weight", weight, weightRows, depth, boxRows);
        place("x", x, rows, depth, variant.rows);
        put("output", output);
        put("bias", bias);
        put("batch", rows);
        put("width", width);
        put("depth", depth);
        put("stride", stride);
        put("gated", gated ? 1 : 0);
        LaunchSize size =
                LaunchSize.of(variant.blocks(weightRows), THREADS).withShared(SHARED_BYTES);
        variant.kernel.launch(stream, size.asDependent(), arguments.clear().add(struct));
    }

    private void place(String member, long address, long rows, long depth, int boxRows) {
        long[] sizes = {depth, rows};
        long[] strides = {depth * type.itemSize()};
        new TensorMap(struct, MATMUL.offset(member), type, sizes, strides, K, boxRows)
                .place(address);
    }

    private void put(String member, long value) {
        struct.put(MATMUL.offset(member), value);
    }

    private static long ceilDiv(long a, long b) {
        return (a + b - 1) / b;
    }
}
