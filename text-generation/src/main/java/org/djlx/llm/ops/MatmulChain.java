// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import java.util.Arrays;
import java.util.List;
import org.djlx.fusedops.kernel.RmsNormKernels;
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
 * Multiplies few rows by several weights, one after the other, in one persistent kernel, {@code
 * chain.cu}. The kernel reads the next matmul's weights while it waits for the results of the last
 * one. For Hopper GPUs and one rank. Results have the bits of {@link DecoderKernels#matmul}. Not
 * thread-safe.
 */
final class MatmulChain {

    static final KernelSource SOURCE =
            KernelSource.ofResource(NativeLibrary.class, "decoder/chain.cu");

    /** Leaves registers for a thread block of attention on the same SM. */
    static final String REGISTERS = "--maxrregcount=72";

    // The kernel supports 8 rows. With 16-bit weights, DecoderKernels.matmul is faster from 2 on.
    private static final int MAX_16_BIT_ROWS = 1;
    private static final int MAX_QUANTIZED_ROWS = 8;

    // Shared memory of a thread block. It leaves room on the SM for a thread block of attention.
    private static final int SHARED_BYTES = 200 << 10;
    private static final int X_BUDGET = 64 << 10; // of it, for the rows of x
    private static final int WORD = Integer.BYTES;
    private static final int BOX_ROWS = 8;
    private static final KernelConstants CONSTANTS = new KernelConstants(SOURCE);
    private static final KernelConstants.Layout CHAIN = CONSTANTS.struct("Chain");
    private static final KernelConstants.Layout LINK = CONSTANTS.struct("Link");
    private static final int MAX_LINKS = CONSTANTS.value("MAX_LINKS");
    private static final int THREADS = (CONSTANTS.value("CONSUMERS") + 1) * CONSTANTS.value("WARP");

    private final CudaKernel kernel;
    private final WeightFormat format;
    private final int blocks;
    private final int stageBytes;
    private final int segmentBytes; // of a row of a weight in a stage
    private final int segmentScales; // of these bytes, with 4 bits
    private final int segmentXBytes; // of a row of x, for a segment
    private final int xPad; // the bytes after a row of x
    private final int maxStages;
    private final int sumBytes;
    private final int normDepth; // of matmuls that normalise their rows
    private final int maxSegments; // of a row of the deepest matmul
    private final boolean hasAlignedScales; // TMA can copy the scales of all rows
    private final KernelStruct struct = new KernelStruct(CHAIN.byteSize());
    private final KernelArguments arguments = new KernelArguments();

    /**
     * A matmul, {@code output = x weightᵀ + bias}, or {@code silu(x gatesᵀ) * (x valuesᵀ)} with
     * biases of both; the struct {@code Matmul} of matmul.cu describes the arrays. {@code x} may be
     * the output of an earlier matmul of the chain.
     *
     * @param gated whether the weight holds the rows of the gates, then the rows of the values
     * @param stride the elements from a row of the output to the next
     * @param bias 0 for none
     * @param norm normalises x first; null for none
     */
    record Link(
            boolean gated,
            long output,
            long stride,
            long x,
            QuantizeKernels.Matrix weight,
            long bias,
            Norm norm) {

        /** Returns the columns of the output. */
        long width() {
            return gated ? weight.rows() / 2 : weight.rows();
        }
    }

    /**
     * A residual addition and RMSNorm before a matmul: x is added to the residual, and the norm of
     * the sum is multiplied. It has the same bits as from {@link RmsNormKernels#add}. All arrays
     * except the weight have the shape of x.
     *
     * @param newResidual receives the sum; must be neither x nor the residual
     */
    record Norm(long weight, long residual, long newResidual, float epsilon) {}

    /**
     * {@code hidden} is the depth of matmuls that normalise their rows, {@code depths} of the
     * others.
     */
    MatmulChain(
            CudaDevice device, CudaModule module, WeightFormat format, int hidden, int... depths) {
        this.format = format;
        normDepth = hidden;
        KernelConstants constants = new KernelConstants(SOURCE, format.options());
        stageBytes = constants.value("STAGE_BYTES");
        segmentBytes = constants.value("SEGMENT");
        segmentScales = constants.value("SCALES");
        segmentXBytes = constants.value("X_BYTES");
        xPad = constants.value("X_PAD");
        maxStages = constants.value("MAX_STAGES");
        sumBytes = constants.value("SUM_BYTES");
        int deepest = Math.max(hidden, Arrays.stream(depths).max().orElse(0));
        maxSegments = segments(deepest);
        hasAlignedScales =
                format.bits() != 4
                        || isAligned(hidden) && Arrays.stream(depths).allMatch(this::isAligned);
        blocks = device.attribute(CudaAttribute.MULTIPROCESSOR_COUNT);
        kernel = module.kernel("decode_chain");
        kernel.allowSharedMemory(SHARED_BYTES);
        kernel.preferSharedMemory();
    }

    /** Returns whether the 4-bit scales of a row have a size that TMA supports. */
    private boolean isAligned(int depth) {
        return format.rowScales(depth) * Float.BYTES % TensorMap.ALIGNMENT == 0;
    }

    private long rowBytes(long depth) {
        return format.bits() == 16 ? depth * Short.BYTES : format.rowBytes(depth);
    }

    private int segments(int depth) {
        return Math.toIntExact((rowBytes(depth) + segmentBytes - 1) / segmentBytes);
    }

    /** Returns the segments of each row of x that are in shared memory at a time. */
    private int window(int rows) {
        return Math.min(maxSegments, X_BUDGET / rows / segmentXBytes);
    }

    /** Returns whether the chain multiplies by such weights. */
    boolean isFor(QuantizeKernels.Matrix weight) {
        return weight.bits() == format.bits();
    }

    /** Returns whether a chain supports this number of rows, and is faster than single kernels. */
    boolean isFor(int rows) {
        int maxRows = format.bits() == 16 ? MAX_16_BIT_ROWS : MAX_QUANTIZED_ROWS;
        return rows <= maxRows && hasAlignedScales && segments(normDepth) <= window(rows);
    }

    /**
     * Launches matmuls; those with a norm have the depth {@code hidden}.
     *
     * @param arrivals the address of an int, the counter of a barrier: initially 0, and used by one
     *     stream only
     * @throws IllegalArgumentException if there are no matmuls or too many, or for too many rows
     */
    void launch(CudaStream stream, int rows, long arrivals, List<Link> links) {
        if (links.isEmpty() || links.size() > MAX_LINKS || !isFor(rows)) {
            throw new IllegalArgumentException(
                    "a chain of %d matmuls of %d rows: use 1 to %d matmuls, and rows as isFor allows"
                            .formatted(links.size(), rows, MAX_LINKS));
        }
        for (int i = 0; i < links.size(); i++) {
            put(i * LINK.byteSize(), links.get(i));
        }
        int window = window(rows);
        int sharedForX = rows * (window * segmentXBytes + xPad);
        int stages = Math.min(maxStages, (SHARED_BYTES - sumBytes - sharedForX) / stageBytes);
        struct.put(CHAIN.offset("count"), links.size())
                .put(CHAIN.offset("batch"), rows)
                .put(CHAIN.offset("stages"), stages)
                .put(CHAIN.offset("window"), window)
                .put(CHAIN.offset("arrivals"), arrivals);
        LaunchSize size =
                LaunchSize.of(blocks, THREADS)
                        .withShared(stages * stageBytes + sumBytes + sharedForX);
        kernel.launch(stream, size.asDependent().asCooperative(), arguments.clear().add(struct));
    }

    private void put(int at, Link link) {
        QuantizeKernels.Matrix weight = link.weight;
        long rowBytes = rowBytes(weight.depth());
        putTensorMap(at, "weight", weight.elements(), rowBytes, weight.rows(), segmentBytes);
        if (format.bits() == 4) {
            long scaleBytes = format.rowScales(weight.depth()) * Float.BYTES;
            int boxBytes = segmentScales * Float.BYTES;
            putTensorMap(at, "groups", weight.scales(), scaleBytes, weight.rows(), boxBytes);
        }
        Norm norm = link.norm == null ? new Norm(0, 0, 0, 0) : link.norm;
        put(at, "output", link.output);
        put(at, "x", link.x);
        put(at, "scales", weight.scales());
        put(at, "bias", link.bias);
        put(at, "width", link.width());
        put(at, "depth", weight.depth());
        put(at, "stride", link.stride);
        put(at, "gated", link.gated ? 1 : 0);
        put(at, "norm_weight", norm.weight);
        put(at, "residual", norm.residual);
        put(at, "new_residual", norm.newResidual);
        put(at, "epsilon", Float.floatToRawIntBits(norm.epsilon));
    }

    private void put(int at, String member, long value) {
        struct.put(at + LINK.offset(member), value);
    }

    private void putTensorMap(
            int at, String member, long address, long rowBytes, long rows, int boxBytes) {
        int offset = at + LINK.offset(member);
        long[] sizes = {rowBytes / WORD, rows};
        long[] strides = {rowBytes};
        new TensorMap(struct, offset, ScalarType.INT32, sizes, strides, boxBytes / WORD, BOX_ROWS)
                .place(address);
    }
}
