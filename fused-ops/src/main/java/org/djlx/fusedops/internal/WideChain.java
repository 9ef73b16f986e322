// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.Arrays;
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
 * Multiplies up to 64 rows by several weights in e4m3, one after the other, in one persistent
 * kernel, {@code wide_chain.cu}. Between two matmuls, the kernel adds the product to the residual
 * and applies an RMSNorm, or applies the activation, while it reads the next weight. It rounds the
 * left operand of each matmul to e4m3, with a scale for each 128 columns of a row. For Hopper GPUs
 * and one rank. Launches use memory of this object, so all must be on one stream. Not thread-safe.
 */
public final class WideChain {

    static final KernelSource SOURCE =
            KernelSource.ofResource(NativeLibrary.class, "decoder/wide_chain.cu");

    private static final int MAX_COLUMNS = 256; // of a tile
    private static final int COLUMN_STEP = 8; // tiles have a multiple of these columns
    private static final KernelConstants CONSTANTS = new KernelConstants(SOURCE);
    private static final KernelConstants.Layout CHAIN = CONSTANTS.struct("Chain");
    private static final KernelConstants.Layout LINK = CONSTANTS.struct("Link");
    private static final int MAX_ROWS = CONSTANTS.value("ROWS");
    private static final int K = CONSTANTS.value("K"); // columns of a k-block
    private static final int MAX_LINKS = CONSTANTS.value("MAX_LINKS");
    private static final int MAX_SPLITS = CONSTANTS.value("MAX_SPLITS");
    private static final int X_TILE_BYTES = CONSTANTS.value("X_TILE_BYTES");
    private static final int SHARED_BYTES = CONSTANTS.value("SHARED_BYTES");
    private static final int THREADS = CONSTANTS.value("THREADS");

    private final CudaKernel kernel;
    private final int blocks;
    private final int maxDepth;
    private final NDArray memory;
    private final long xBytes; // of one of the two x buffers; x is a left operand in e4m3
    private final long squaresBytes;
    private final long partBytes;
    private final KernelStruct struct = new KernelStruct(CHAIN.byteSize());
    private final KernelArguments arguments = new KernelArguments();

    /** The use of a product. The names are those of constants in {@code wide_chain.cu}. */
    public enum Kind {
        STORE,
        ADD,
        ACTIVATE;

        long code() {
            return CONSTANTS.value(name());
        }
    }

    /**
     * A quantized weight. Arrays are given by address, aligned to 16 bytes.
     *
     * @param elements the elements in e4m3, of shape (width, depth)
     * @param scales the scales of the rows in float32, of shape (width)
     * @param bias the bias in the chain's element type, of shape (width); 0 for none
     * @param width a multiple of 8
     * @param depth a multiple of 16
     */
    public record Weight(long elements, long scales, long bias, int width, int depth) {}

    /**
     * A matmul, {@code x weightᵀ + bias}, and the use of its product. Arrays are given by address,
     * aligned to 16 bytes, in the chain's element type. The methods make links; what a kind does
     * not use is 0.
     */
    public record Link(
            Kind kind,
            Weight weight,
            long output,
            int stride,
            long residual,
            long newResidual,
            long normWeight) {

        /**
         * Stores the product. Only for the last matmul of a chain.
         *
         * @param output receives the product: rows of {@code width}, {@code stride} elements apart
         */
        public static Link store(Weight weight, long output, int stride) {
            return new Link(Kind.STORE, weight, output, stride, 0, 0, 0);
        }

        /**
         * Stores the sum of the residual and the product. The next matmul multiplies the RMSNorm of
         * the sum. Must not follow a link of this kind, or an input with a norm.
         *
         * @param residual the residual, of shape (rows, width)
         * @param newResidual receives the sum; must not be the residual
         * @param normWeight the weight of the norm, of shape (width)
         */
        public static Link add(Weight weight, long residual, long newResidual, long normWeight) {
            return new Link(Kind.ADD, weight, 0, 0, residual, newResidual, normWeight);
        }

        /**
         * Splits the product into gates and values. The next matmul multiplies {@code silu(gates) *
         * values}, of half the width.
         *
         * @param weight the rows of the gates, then the rows of the values
         */
        public static Link activate(Weight weight) {
            return new Link(Kind.ACTIVATE, weight, 0, 0, 0, 0, 0);
        }
    }

    /**
     * The left operand of the first matmul. Arrays are given by address.
     *
     * @param rows the rows, of shape (rows, depth)
     * @param normWeight the weight of an RMSNorm that is applied to the rows first, of shape
     *     (depth); 0 for no norm
     */
    public record Input(long rows, long normWeight) {}

    /**
     * The division of a matmul between thread blocks.
     *
     * @param columns the columns of the product in a tile: rows of the weight
     * @param splits the ranges into which k is divided, each for a thread block
     */
    private record Tiling(int columns, int splits) {}

    /**
     * Allocates the memory of launches.
     *
     * @param manager owns the memory
     * @param stream the stream that initialises the memory
     * @param depths the depths of all matmuls
     */
    WideChain(
            CudaDevice device,
            CudaModule module,
            NDManager manager,
            CudaStream stream,
            int... depths) {
        blocks = device.attribute(CudaAttribute.MULTIPROCESSOR_COUNT);
        kernel = module.kernel("decode_wide_chain");
        kernel.allowSharedMemory(SHARED_BYTES);
        maxDepth = Arrays.stream(depths).max().orElseThrow();
        long tiles = ceilDiv(maxDepth, K);
        xBytes = tiles * X_TILE_BYTES;
        squaresBytes = tiles * MAX_ROWS * Float.BYTES;
        partBytes = (long) blocks * MAX_ROWS * K * Float.BYTES;
        long bytes = 2 * xBytes + squaresBytes + partBytes + Integer.BYTES;
        memory = Torch.empty(manager, new Shape(bytes), ScalarType.UINT8);
        long parts = Torch.dataPointer(memory) + 2 * xBytes + squaresBytes;
        stream.memsetAsync(parts, (byte) -1, partBytes); // ABSENT
        stream.memsetAsync(parts + partBytes, (byte) 0, Integer.BYTES); // arrivals
    }

    /**
     * Returns whether the kernel supports the sizes of a model.
     *
     * @param hidden the width of the residual
     * @param depths the depths of all matmuls. The depth after {@link Link#activate} is half of
     *     that link's width.
     * @param stored the widths of the products that are stored
     */
    static boolean isSupported(CudaDevice device, int hidden, int[] depths, int[] stored) {
        return ceilDiv(hidden, K) <= device.attribute(CudaAttribute.MULTIPROCESSOR_COUNT)
                && Arrays.stream(depths).allMatch(depth -> depth % TensorMap.ALIGNMENT == 0)
                && Arrays.stream(stored).allMatch(width -> width % COLUMN_STEP == 0);
    }

    /** Returns whether a chain supports this number of rows. */
    public boolean isFor(int rows) {
        return rows > 0 && rows <= MAX_ROWS;
    }

    /**
     * Launches a chain of matmuls. The first one multiplies the input, each other one the result of
     * the link before it.
     *
     * @param rows the number of rows, allowed by {@link #isFor}
     * @param epsilon the number that norms add to the mean of squares
     * @param links the matmuls. The last one is a {@link Link#store}, the others are not.
     * @throws IllegalArgumentException if there are no matmuls, too many matmuls or too many rows,
     *     or if a matmul has a kind or a depth that is not allowed in its place
     */
    public void launch(CudaStream stream, int rows, Input input, float epsilon, List<Link> links) {
        if (links.isEmpty() || links.size() > MAX_LINKS || !isFor(rows)) {
            throw new IllegalArgumentException(
                    ("a chain of %d matmuls of %d rows is not supported: 1 to %d matmuls of up"
                                    + " to %d rows are")
                            .formatted(links.size(), rows, MAX_LINKS, MAX_ROWS));
        }
        boolean normed = input.normWeight != 0; // whether the link multiplies an RMSNorm
        int made = 0; // columns of the next x
        for (int i = 0; i < links.size(); i++) {
            Link link = links.get(i);
            boolean last = i == links.size() - 1;
            if (last != (link.kind == Kind.STORE) || normed && link.kind == Kind.ADD) {
                throw new IllegalArgumentException(
                        ("matmul %d of %d is %s%s: the last matmul must be STORE, the others"
                                        + " must not, and ADD cannot multiply normed rows")
                                .formatted(
                                        i + 1,
                                        links.size(),
                                        link.kind,
                                        normed ? " of normed rows" : ""));
            }
            int depth = link.weight.depth;
            if (depth > maxDepth || i > 0 && depth != made) {
                throw new IllegalArgumentException(
                        "matmul %d of %d has a depth of %d, but x has %d columns; at most %d are allowed"
                                .formatted(
                                        i + 1,
                                        links.size(),
                                        depth,
                                        i == 0 ? depth : made,
                                        maxDepth));
            }
            put(i * LINK.byteSize(), link, normed);
            normed = link.kind == Kind.ADD;
            made = normed ? link.weight.width : link.weight.width / 2;
        }
        long x = Torch.dataPointer(memory);
        long squares = x + 2 * xBytes;
        struct.put(CHAIN.offset("count"), links.size())
                .put(CHAIN.offset("batch"), rows)
                .put(CHAIN.offset("input"), input.rows)
                .put(CHAIN.offset("norm_weight"), input.normWeight)
                .put(CHAIN.offset("x"), x)
                .put(CHAIN.offset("x") + Long.BYTES, x + xBytes)
                .put(CHAIN.offset("squares"), squares)
                .put(CHAIN.offset("parts"), squares + squaresBytes)
                .put(CHAIN.offset("arrivals"), squares + squaresBytes + partBytes)
                .put(CHAIN.offset("epsilon"), Float.floatToRawIntBits(epsilon));
        LaunchSize size = LaunchSize.of(blocks, THREADS).withShared(SHARED_BYTES);
        kernel.launch(stream, size.asDependent().asCooperative(), arguments.clear().add(struct));
    }

    private void put(int at, Link link, boolean normed) {
        Weight weight = link.weight;
        boolean gated = link.kind == Kind.ACTIVATE;
        Tiling tiling = tiling(link.kind, weight.width, weight.depth);
        long[] sizes = {weight.depth, weight.width};
        long[] strides = {weight.depth};
        int boxRows = gated ? K : tiling.columns;
        int offset = at + LINK.offset("weight");
        new TensorMap(struct, offset, ScalarType.FLOAT8_E4M3FN, sizes, strides, K, boxRows)
                .place(weight.elements);
        put(at, "scales", weight.scales);
        put(at, "bias", weight.bias);
        put(at, "width", gated ? weight.width / 2 : weight.width);
        put(at, "depth", weight.depth);
        put(at, "kind", link.kind.code());
        put(at, "columns", tiling.columns);
        put(at, "splits", tiling.splits);
        put(at, "is_normed", normed ? 1 : 0);
        put(at, "output", link.output);
        put(at, "stride", link.stride);
        put(at, "residual", link.residual);
        put(at, "new_residual", link.newResidual);
        put(at, "norm_weight", link.normWeight);
    }

    private void put(int at, String member, long value) {
        struct.put(at + LINK.offset(member), value);
    }

    /**
     * Returns the tiling of a matmul. Narrow tiles, of K columns, are split so that each thread
     * block has a split. If there are more tiles than blocks, tiles are wide, and blocks have
     * several.
     */
    private Tiling tiling(Kind kind, int width, int depth) {
        int tiles = ceilDiv(width, K);
        if (kind == Kind.ACTIVATE) {
            return new Tiling(2 * K, 1);
        }
        if (tiles <= blocks) {
            int splits = Math.min(MAX_SPLITS, ceilDiv(depth, K));
            return new Tiling(K, Math.min(splits, blocks / tiles));
        }
        int tilesPerBlock = ceilDiv(width, blocks * MAX_COLUMNS);
        int columns = ceilDiv(ceilDiv(width, blocks * tilesPerBlock), COLUMN_STEP) * COLUMN_STEP;
        return new Tiling(Math.max(columns, K + COLUMN_STEP), 1);
    }

    private static int ceilDiv(int a, int b) {
        return (a + b - 1) / b;
    }
}
