// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
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
 * Multiplies up to {@value #MAX_ROWS} rows by several weights in e4m3, one after the other, in one
 * persistent kernel, {@code wide_chain.cu}. The kernel rounds the rows to e4m3, with a scale for
 * each {@value #K} columns of a row. It adds products to the residual, norms, and activates between
 * the matmuls, and reads the next weight meanwhile. For Hopper GPUs and one rank. Launches use
 * memory of this object, so they are for one stream. Not thread-safe.
 */
public final class WideChain {

    static final KernelSource SOURCE =
            KernelSource.ofResource(NativeLibrary.class, "decoder/wide_chain.cu");

    private static final int MAX_ROWS = 64;
    private static final int K = 128;
    private static final int MAX_COLUMNS = 256; // of a tile
    private static final int COLUMN_STEP = 8;
    private static final KernelConstants CONSTANTS = new KernelConstants(SOURCE);
    private static final KernelConstants.Layout CHAIN = CONSTANTS.struct("Chain");
    private static final KernelConstants.Layout LINK = CONSTANTS.struct("Link");
    private static final int MAX_LINKS = CONSTANTS.value("MAX_LINKS");
    private static final int MAX_SPLITS = CONSTANTS.value("MAX_SPLITS");
    private static final int X_TILE_BYTES = CONSTANTS.value("X_TILE_BYTES");
    private static final int SHARED_BYTES = CONSTANTS.value("SHARED_BYTES");
    private static final int THREADS =
            CONSTANTS.value("THREADS") + 3 * CONSTANTS.value("WARP"); // with those that copy

    static {
        if (CONSTANTS.value("ROWS") != MAX_ROWS || CONSTANTS.value("K") != K) {
            throw new IllegalStateException("constants differ from those of wide_chain.cu");
        }
    }

    private final CudaKernel kernel;
    private final int blocks;
    private final NDArray memory;
    private final long xBytes; // of a buffer of x
    private final long squaresBytes;
    private final long partBytes;
    private final KernelStruct struct = new KernelStruct(CHAIN.byteSize());
    private final KernelArguments arguments = new KernelArguments();

    /** What becomes of a product. */
    private enum Kind {
        STORE,
        ADD,
        ACTIVATE;

        long code() {
            return CONSTANTS.value(name());
        }
    }

    /**
     * A weight in e4m3, by address, of shape (width, depth).
     *
     * @param scales the scales of its rows, in float32
     * @param bias the bias, of shape (width), in the type of the chain; 0 for none
     * @param width a multiple of 8
     * @param depth a multiple of 16
     */
    public record Weight(long elements, long scales, long bias, int width, int depth) {}

    /** A matmul, and what becomes of its product. Arrays are given by address. */
    public static final class Link {

        private final Kind kind;
        private final Weight weight;
        private final long output;
        private final int stride;
        private final long residual;
        private final long newResidual;
        private final long normWeight;

        private Link(
                Kind kind,
                Weight weight,
                long output,
                int stride,
                long residual,
                long newResidual,
                long normWeight) {
            this.kind = kind;
            this.weight = weight;
            this.output = output;
            this.stride = stride;
            this.residual = residual;
            this.newResidual = newResidual;
            this.normWeight = normWeight;
        }

        /** Stores the product. Rows of the output are {@code stride} elements apart. */
        public static Link store(Weight weight, long output, int stride) {
            return new Link(Kind.STORE, weight, output, stride, 0, 0, 0);
        }

        /**
         * Stores the sum of the residual and the product. The next matmul multiplies the RMSNorm of
         * the sum.
         *
         * @param residual the residual, of shape (rows, width)
         * @param newResidual receives the sum; not the residual
         * @param normWeight the weight of the norm, of shape (width)
         */
        public static Link add(Weight weight, long residual, long newResidual, long normWeight) {
            return new Link(Kind.ADD, weight, 0, 0, residual, newResidual, normWeight);
        }

        /**
         * The next matmul multiplies {@code silu(gates) * values}, of half the width. The weight
         * has the rows of the gates, then those of the values.
         */
        public static Link activate(Weight weight) {
            return new Link(Kind.ACTIVATE, weight, 0, 0, 0, 0, 0);
        }
    }

    /**
     * The input of the first matmul.
     *
     * @param rows the rows, of shape (rows, depth)
     * @param normWeight the weight of an RMSNorm of these rows, of shape (depth); 0 for no norm
     */
    public record Input(long rows, long normWeight) {}

    /** Divides a weight into tiles of columns of the product, and k into parts. */
    private record Tiling(int columns, int splits) {}

    /**
     * Allocates memory.
     *
     * @param manager owns the memory
     * @param stream initialises the memory
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
        long tiles = 0;
        for (int depth : depths) {
            tiles = Math.max(tiles, ceilDiv(depth, K));
        }
        xBytes = tiles * X_TILE_BYTES;
        squaresBytes = tiles * MAX_ROWS * Float.BYTES;
        partBytes = (long) blocks * MAX_ROWS * K * Float.BYTES;
        long bytes = 2 * xBytes + squaresBytes + partBytes + Integer.BYTES;
        memory = Torch.empty(manager, new Shape(bytes), ScalarType.UINT8);
        long parts = Torch.dataPointer(memory) + 2 * xBytes + squaresBytes;
        stream.memsetAsync(parts, (byte) -1, partBytes); // ABSENT
        stream.memsetAsync(parts + partBytes, (byte) 0, Integer.BYTES);
    }

    /**
     * Returns whether chains can compute a model.
     *
     * @param hidden the width of what is added to the residual
     * @param depths the depths of all matmuls, half the widths of those that activate among them
     * @param stored the widths of what is stored
     */
    static boolean isSupported(CudaDevice device, int hidden, int[] depths, int[] stored) {
        boolean fits = ceilDiv(hidden, K) <= device.attribute(CudaAttribute.MULTIPROCESSOR_COUNT);
        for (int depth : depths) {
            fits &= depth % TensorMap.ALIGNMENT == 0;
        }
        for (int width : stored) {
            fits &= width % COLUMN_STEP == 0;
        }
        return fits;
    }

    /** Returns whether a chain supports this number of rows. */
    public boolean isFor(int rows) {
        return rows <= MAX_ROWS;
    }

    /**
     * Launches matmuls. Each but the first multiplies what the link before makes.
     *
     * @param rows the number of rows, allowed by {@link #isFor}
     * @param epsilon the number that norms add to the mean of squares
     * @param links the matmuls; only the last one stores its product
     * @throws IllegalArgumentException if there are no matmuls or too many, for too many rows, or
     *     if the product of a link is not what the next one multiplies
     */
    public void launch(CudaStream stream, int rows, Input input, float epsilon, List<Link> links) {
        if (links.isEmpty() || links.size() > MAX_LINKS || !isFor(rows)) {
            throw new IllegalArgumentException(
                    ("a chain of %d matmuls of %d rows is not supported: 1 to %d matmuls of up"
                                    + " to %d rows are")
                            .formatted(links.size(), rows, MAX_LINKS, MAX_ROWS));
        }
        boolean normed = input.normWeight != 0;
        for (int i = 0; i < links.size(); i++) {
            Link link = links.get(i);
            boolean last = i == links.size() - 1;
            if (last != (link.kind == Kind.STORE) || normed && link.kind == Kind.ADD) {
                throw new IllegalArgumentException(
                        ("matmul %d of %d cannot be of the kind %s%s: the last one stores its"
                                        + " product, and no product of normed rows is added")
                                .formatted(
                                        i + 1,
                                        links.size(),
                                        link.kind,
                                        normed ? " of normed rows" : ""));
            }
            put(i * LINK.byteSize(), link, normed);
            normed = link.kind == Kind.ADD;
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
        int box = gated ? K : tiling.columns;
        new TensorMap(
                        struct,
                        at + LINK.offset("weight"),
                        ScalarType.FLOAT8_E4M3FN,
                        sizes,
                        strides,
                        K,
                        box)
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
     * Returns the tiling with which a thread block reads least of the weight. Tiles of up to K
     * columns can be split, if all parts of tiles have a thread block each.
     */
    private Tiling tiling(Kind kind, int width, int depth) {
        if (kind == Kind.ACTIVATE) {
            return new Tiling(2 * K, 1);
        }
        int kBlocks = ceilDiv(depth, K);
        int mostSplits = Math.min(MAX_SPLITS, kBlocks);
        if (kind == Kind.ADD) {
            return new Tiling(K, Math.min(mostSplits, blocks / ceilDiv(width, K)));
        }
        int passes = ceilDiv(width, blocks * MAX_COLUMNS);
        int columns = Math.max(K + COLUMN_STEP, columns(width, blocks * passes));
        Tiling best = new Tiling(columns, 1);
        long least = (long) passes * columns * kBlocks;
        for (int splits = 1; splits <= mostSplits; splits++) {
            columns = columns(width, blocks / splits);
            long read = (long) columns * ceilDiv(kBlocks, splits);
            if (columns <= K && read <= least) {
                best = new Tiling(columns, splits);
                least = read;
            }
        }
        return best;
    }

    private static int columns(int width, int tiles) {
        return ceilDiv(ceilDiv(width, tiles), COLUMN_STEP) * COLUMN_STEP;
    }

    private static int ceilDiv(int a, int b) {
        return (a + b - 1) / b;
    }
}
