// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.fused;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.p2p.KernelSignals;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.collectives.p2p.P2pStream;
import org.djlx.collectives.spi.Operation;
import org.djlx.fusedops.cost.CostModel;
import org.djlx.fusedops.cost.FusedMatmulModel;
import org.djlx.fusedops.cost.FusedOperator;
import org.djlx.fusedops.cost.Machine;
import org.djlx.fusedops.cost.Workload;
import org.djlx.fusedops.internal.path.Pipeline;
import org.djlx.fusedops.internal.path.Slots;
import org.djlx.fusedops.kernel.Compute;
import org.djlx.fusedops.kernel.KernelLauncher;
import org.djlx.fusedops.kernel.Product;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaKernel;
import org.djlx.nativeops.cuda.CudaModule;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.cuda.KernelArguments;
import org.djlx.nativeops.cuda.KernelCompiler;
import org.djlx.nativeops.cuda.KernelConstants;
import org.djlx.nativeops.cuda.KernelSource;
import org.djlx.nativeops.cuda.KernelStruct;
import org.djlx.nativeops.cuda.LaunchSize;
import org.djlx.nativeops.cuda.MatrixLayout;
import org.djlx.nativeops.cuda.TensorMap;
import org.djlx.nativeops.host.NativeMemory;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * Launches the kernel of {@code fused_matmul.cu}: a persistent matmul that also pushes, signals and
 * waits. It runs on Hopper GPUs, in float16, bfloat16 and float8 (e4m3).
 *
 * <p>Which ranks must use it:
 *
 * <ul>
 *   <li>All-gather + matmul: ranks may differ, because {@link Pipeline} pushes the same shards and
 *       sends the same signals.
 *   <li>Matmul + reduce-scatter: all ranks or none, because the kernel signals each half tile. The
 *       decision depends only on shapes, types and {@link KernelSignals}, which are the same on all
 *       ranks. The layout of B and the width of A may differ.
 * </ul>
 *
 * <p>Not thread-safe: call it in the order of the group's operations.
 */
public final class FusedMatmul implements KernelLauncher {

    private static final String ARCHITECTURE = "sm_90a";
    private static final KernelSource SOURCE =
            KernelSource.ofResource(NativeLibrary.class, "fused_matmul/fused_matmul.cu");
    private static final KernelConstants CONSTANTS = new KernelConstants(SOURCE);
    private static final int THREADS = CONSTANTS.value("FUSED_THREADS");
    private static final int TILE_ROWS = FusedMatmulModel.TILE_ROWS;
    private static final int STEP_BYTES = CONSTANTS.value("STEP_BYTES");
    private static final int BOX = CONSTANTS.value("BOX_COLUMNS");
    private static final int HALF = CONSTANTS.value("HALF_M");
    private static final int SWIZZLED_ROWS =
            8; // the swizzle pattern of a box repeats after these rows

    private static final List<Integer> TILE_COLUMNS = FusedMatmulModel.TILE_COLUMNS;

    // Reading them from the source takes milliseconds, too long for each new shape.
    private static final Map<Variant, Integer> SHARED_BYTES = new ConcurrentHashMap<>();

    // Two ranks pull partial sums from each other. More ranks push them. See
    // docs/design/experiments/fused-matmul.md.
    private static final int PULLING_RANKS = 2;

    // The half of the buffers with the slots. Operations that push use the half of all GPU
    // operations (P2pBuffers.epoch). A rank with slots that peers pull uses the other half, because
    // later operations write slots of their own rank without waiting for peers.
    private static final int SENT = 1;
    private static final int PULLED = 0;

    private static final KernelConstants.Layout LAUNCH = CONSTANTS.struct("Launch");
    private static final int LEFT = LAUNCH.offset("left");
    private static final int ARRIVED = LAUNCH.offset("arrived");
    private static final int RIGHT = LAUNCH.offset("right");
    private static final int OUT = LAUNCH.offset("out");
    private static final int COLUMNS = LAUNCH.offset("columns");
    private static final int FACTOR = LAUNCH.offset("factor");
    private static final int TIMEOUT = LAUNCH.offset("timeout");
    private static final int ENTERED = LAUNCH.offset("entered");
    private static final int SIGNALS = LAUNCH.offset("signals");
    private static final int SHARD = LAUNCH.offset("shard");
    private static final int SLOTS = LAUNCH.offset("slots");
    private static final int GATHERED = LAUNCH.offset("gathered");
    private static final int ROW_SCALES = LAUNCH.offset("row_scales");
    private static final int COLUMN_SCALES = LAUNCH.offset("column_scales");
    private static final int SCALE_STEP = LAUNCH.offset("scale_step");

    private final CudaDevice device;
    private final CurrentStreams streams;
    private final KernelCompiler compiler;
    private final Map<Variant, CudaModule> modules = new HashMap<>();
    private final KernelArguments arguments = new KernelArguments();

    /** Returns the kernels of a group; empty if its device is not a Hopper GPU. */
    public static Optional<FusedMatmul> of(Compute compute) {
        return compute.cuda()
                .filter(FusedMatmul::isSupported)
                .flatMap(
                        device ->
                                compute.launcher(
                                        FusedMatmul.class,
                                        (gpu, streams, compiler, ranks) ->
                                                new FusedMatmul(gpu, streams, compiler)));
    }

    FusedMatmul(CudaDevice device, CurrentStreams streams, KernelCompiler compiler) {
        this.device = device;
        this.streams = streams;
        this.compiler = compiler;
    }

    private enum Kind {
        GATHER,
        GATHER_GATED,
        SCATTER
    }

    /** The options that a kernel is compiled with. */
    private record Variant(ScalarType type, int tile, boolean transposed, Kind kind) {

        String[] options() {
            return new String[] {
                "-DTYPE=" + (type == ScalarType.FLOAT16 ? "Float16" : "Bfloat16"),
                "-DTILE_N=" + TILE_COLUMNS.get(tile),
                "-DTRANSPOSED=" + (transposed ? 1 : 0),
                "-DSCATTER=" + (kind == Kind.SCATTER ? 1 : 0),
                "-DGATED=" + (kind == Kind.GATHER_GATED ? 1 : 0),
                "-DSCALED=" + (isScaled(type) ? 1 : 0)
            };
        }

        int sharedBytes() {
            return SHARED_BYTES.computeIfAbsent(
                    this, key -> new KernelConstants(SOURCE, key.options()).value("SHARED_BYTES"));
        }
    }

    private static boolean isSupported(CudaDevice device) {
        return device.architecture().equals(ARCHITECTURE);
    }

    /** The sizes of an operator, and its tiles. Ranks with the same sizes get the same tiles. */
    private record Sizes(Workload work, KernelSignals signals) {

        int blocks() {
            return signals.blocks();
        }

        ScalarType type() {
            return work.type();
        }

        int ranks() {
            return work.ranks();
        }

        long rows() {
            return work.rows();
        }

        long[] columns() {
            return work.columns().stream().mapToLong(Long::longValue).toArray();
        }

        private FusedMatmulModel model() {
            return new FusedMatmulModel(Machine.H200.withMultiprocessors(blocks()), work);
        }

        boolean isPossible() {
            return model().isPossible(signals.flagCount());
        }

        /**
         * Returns the rows of a box of A. Boxes are not larger than A, because loading missing rows
         * takes time.
         */
        int boxRows() {
            return (int) Math.min(TILE_ROWS, ceilDiv(rows(), SWIZZLED_ROWS) * SWIZZLED_ROWS);
        }

        /** Returns the number of tiles of one rank's rows. */
        long tilesOfPart(int tile) {
            return model().tilesOfPart(tile);
        }

        FusedMatmulModel.Tiling tiling() {
            return model().fastest();
        }
    }

    private static long ceilDiv(long a, long b) {
        return (a + b - 1) / b;
    }

    private static boolean isScaled(ScalarType type) {
        return type == ScalarType.FLOAT8_E4M3FN;
    }

    private static boolean isRowMajor(ScalarType type, MatrixLayout matrix) {
        return matrix.isRowMajor()
                && matrix.rowStride() * type.itemSize() % TensorMap.ALIGNMENT == 0
                && matrix.rowStride() > 0;
    }

    /** Returns whether the kernel loads Bs, which are usable, by columns. */
    private static boolean isTransposed(ScalarType type, MatrixLayout b) {
        return isScaled(type) || !isRowMajor(type, b);
    }

    /**
     * The Bs that the kernel can load without a copy. Other Bs must be copied to the {@link
     * #layoutOfB}.
     */
    public static boolean[] usable(ScalarType type, MatrixLayout[] bs, long[] addresses) {
        boolean[] usable = new boolean[bs.length];
        boolean columnMajor = true;
        for (int i = 0; i < bs.length; i++) {
            boolean byColumns = isUsable(type, bs[i].transposed(), addresses[i]);
            usable[i] = isScaled(type) ? byColumns : isUsable(type, bs[i], addresses[i]);
            columnMajor &= byColumns;
        }
        if (columnMajor) {
            Arrays.fill(usable, true);
        }
        return usable;
    }

    /** Returns whether the kernel can load a single B at an address without a copy. */
    public static boolean isUsableB(ScalarType type, MatrixLayout b, long address) {
        return usable(type, new MatrixLayout[] {b}, new long[] {address})[0];
    }

    /** Returns whether the kernel can load A at an address without a copy. */
    public static boolean isUsable(ScalarType type, MatrixLayout a, long address) {
        return isRowMajor(type, a) && address % TensorMap.ALIGNMENT == 0;
    }

    /** Returns the layout of a copy of A with {@code inner} columns: rows of whole units. */
    public static MatrixLayout layout(long rows, long inner) {
        int unit = TensorMap.ALIGNMENT; // in elements of any type
        return new MatrixLayout(rows, inner, Math.max(1, ceilDiv(inner, unit)) * unit, 1);
    }

    /** Returns the layout of a copy of a B: by columns for float8, by rows for other types. */
    public static MatrixLayout layoutOfB(ScalarType type, long inner, long columns) {
        return isScaled(type)
                ? layout(columns, inner).transposed()
                : MatrixLayout.contiguous(inner, columns);
    }

    /**
     * Returns the two-dimensional shape of a copy of A with the {@link #layout} for copies. Its
     * rows may be longer than A's rows.
     */
    public static Shape copyShape(Shape a) {
        return new Shape(a.get(0), layout(a.get(0), a.get(1)).rowStride());
    }

    /**
     * Copies A into a copy with padded rows.
     *
     * @param copy the destination, of the {@link #copyShape}
     */
    public static void copy(NDArray copy, NDArray a, ScalarType type) {
        long rows = a.getShape().get(0);
        long columns = a.getShape().get(1);
        long stride = layout(rows, columns).rowStride();
        long byteSize = rows * stride * type.itemSize();
        NativeMemory memory =
                new NativeMemory(Torch.dataPointer(copy), byteSize, a.getDevice(), () -> {});
        try (NDArray part =
                Torch.view(
                        copy.getManager(),
                        memory,
                        0,
                        new long[] {rows, columns},
                        new long[] {stride, 1},
                        type)) {
            NoGradient.run(() -> Torch.copy(part, a));
        }
    }

    /**
     * Returns the sizes that decide on tiles. All ranks of a reduce-scatter must choose the same
     * tiles, because each half tile has a flag.
     */
    private static Optional<Sizes> sizes(P2pBuffers buffers, Workload work) {
        Workload known =
                work.operator() == FusedOperator.ALL_GATHER_MATMUL ? work : CostModel.usual(work);
        return buffers.kernelSignals().map(signals -> new Sizes(known, signals));
    }

    /** Returns whether the kernel can compute an all-gather + matmul. */
    public boolean gathers(P2pBuffers buffers, Workload work) {
        return sizes(buffers, work).filter(Sizes::isPossible).isPresent();
    }

    /** Returns whether the kernel can compute a matmul + reduce-scatter. The same on all ranks. */
    public boolean scatters(P2pBuffers buffers, Workload work, ReduceOp op) {
        // An average over a number of ranks that is not a power of two would be rounded twice.
        boolean exact = op == ReduceOp.SUM || Integer.bitCount(work.ranks()) == 1;
        return exact && sizes(buffers, work).filter(Sizes::isPossible).isPresent();
    }

    /**
     * Returns whether the kernel can multiply values by the activation of their gates.
     *
     * @param work the operator, {@linkplain #gathers possible} for the kernel
     * @param b the layout of B: the columns of the gates, then the columns of the values
     */
    public boolean gates(P2pBuffers buffers, Workload work, MatrixLayout b, long address) {
        Sizes sizes = sizes(buffers, work).orElseThrow();
        // A tile has whole boxes of gates and of values, which may start at any column.
        return isTransposed(work.type(), b)
                && isUsable(work.type(), b.transposed(), address)
                && b.columns() % (2 * FusedMatmulModel.UNIT) == 0
                && TILE_COLUMNS.get(sizes.tiling().tile()) >= 2 * BOX;
    }

    /**
     * Prepares an all-gather + matmul that {@link #gathers} allows.
     *
     * @param slots slots of a shard's size
     * @param bs the layouts of the Bs, all {@linkplain #usable usable}
     */
    public Gather gather(Slots slots, Workload work, MatrixLayout... bs) {
        return gather(slots, work, Kind.GATHER, bs);
    }

    /**
     * Prepares an all-gather + matmul that multiplies values by the activation of their {@link
     * #gates}. The product has half as many columns as B.
     */
    public Gather gatherGated(Slots slots, Workload work, MatrixLayout b) {
        return gather(slots, work, Kind.GATHER_GATED, b);
    }

    @SuppressWarnings("try") // the scope is not named in the body
    private Gather gather(Slots slots, Workload work, Kind kind, MatrixLayout... bs) {
        Sizes sizes = sizes(slots.buffers(), work).orElseThrow();
        FusedMatmulModel.Tiling tiling = sizes.tiling();
        Variant variant =
                new Variant(work.type(), tiling.tile(), isTransposed(work.type(), bs[0]), kind);
        // Encoding tensor maps needs the CUDA context, which may not be current on this thread.
        try (CurrentStreams.Scope scope = streams.hold()) {
            return new Gather(slots, sizes, work.inner(), variant, bs, tiling.pushers());
        }
    }

    /**
     * Prepares a matmul + reduce-scatter that {@link #scatters} allows.
     *
     * @param slots slots of a part's size
     * @param a the layout of A, {@linkplain #isUsable usable}; its width may differ between ranks
     *     and may be 0
     * @param b the layout of B, {@linkplain #usable usable}
     * @param op SUM, or AVG to divide the sum by the number of ranks
     */
    @SuppressWarnings("try") // the scope is not named in the body
    public Scatter scatter(
            Slots slots, Workload work, MatrixLayout a, MatrixLayout b, ReduceOp op) {
        Sizes sizes = sizes(slots.buffers(), work).orElseThrow();
        Variant variant =
                new Variant(
                        work.type(),
                        sizes.tiling().tile(),
                        isTransposed(work.type(), b),
                        Kind.SCATTER);
        float factor = op == ReduceOp.AVG ? 1f / sizes.ranks() : 1;
        try (CurrentStreams.Scope scope = streams.hold()) {
            return new Scatter(slots, sizes, variant, a, b, factor);
        }
    }

    private CudaKernel kernel(Variant variant) {
        CudaModule module =
                modules.computeIfAbsent(
                        variant, key -> compiler.load(device, SOURCE, key.options()));
        CudaKernel kernel = module.kernel("fused_matmul");
        kernel.allowSharedMemory(variant.sharedBytes());
        return kernel;
    }

    /** A prepared operator on this rank. */
    public abstract class Launch {

        final KernelStruct struct = new KernelStruct(LAUNCH.byteSize());
        final Sizes sizes;
        final int rank;
        private final P2pBuffers buffers;
        private final Slots slots;
        private final int half;
        private final CudaKernel kernel;
        private final LaunchSize size;
        private final int leastBlocks; // each pushes a share of the shard

        private Launch(
                Slots slots,
                int half,
                Sizes sizes,
                long inner,
                Variant variant,
                long blocks,
                long lag,
                long pushers) {
            this.buffers = slots.buffers();
            this.slots = slots;
            this.half = half;
            this.sizes = sizes;
            this.rank = buffers.rank();
            kernel = kernel(variant);
            size =
                    LaunchSize.of((int) Math.min(sizes.blocks(), blocks), THREADS)
                            .withShared(variant.sharedBytes());
            leastBlocks = (int) Math.max(1, pushers);
            KernelSignals signals = sizes.signals();
            long[] words = variant.kind() == Kind.SCATTER ? signals.flags() : signals.words();
            long flagsOfRank = (long) signals.flagCount() * Long.BYTES;
            put("rights", sizes.columns().length);
            put("rows", sizes.rows());
            put("inner", inner);
            put("left_bytes", (long) sizes.boxRows() * STEP_BYTES);
            put("rank", rank);
            put("ranks", sizes.ranks());
            put("own_delay", lag);
            put("pushers", pushers);
            put("status", signals.status());
            put("counters", signals.counters());
            put("entered_distance", signals.rankDistance());
            boolean scatters = variant.kind() == Kind.SCATTER;
            put("rank_distance", scatters ? flagsOfRank : signals.rankDistance());
            put("slot_bytes", slots.distance());
            struct.put(FACTOR, 1f);
            for (int peer = 0; peer < sizes.ranks(); peer++) {
                int place = peer * Long.BYTES;
                struct.put(ENTERED + place, signals.entered()[peer])
                        .put(SIGNALS + place, words[peer])
                        .put(SLOTS + place, slot(peer, 0));
            }
        }

        final void put(String member, long value) {
            struct.put(LAUNCH.offset(member), value);
        }

        /** Makes the tensor map of an operand. Its boxes have the width of a step. */
        final TensorMap operand(int offset, long[] dimensions, long[] strides, int... box) {
            return new TensorMap(struct, offset, sizes.type(), dimensions, strides, box);
        }

        /** Makes the tensor map of products, with boxes of half a tile's rows. */
        final TensorMap product(int offset, long[] dimensions, long... strides) {
            ScalarType type = Workload.typeOfProduct(sizes.type());
            int[] box = dimensions.length == 2 ? new int[] {BOX, HALF} : new int[] {BOX, HALF, 1};
            return new TensorMap(struct, offset, type, dimensions, strides, box);
        }

        /** Returns the columns of A that a step multiplies. */
        final int step() {
            return STEP_BYTES / sizes.type().itemSize();
        }

        final long itemOfProduct() {
            return Workload.typeOfProduct(sizes.type()).itemSize();
        }

        /** Sets the scales of A and of a B; no-op without scales. */
        final void place(Product.Scales scales, int b) {
            if (scales != null) {
                struct.put(ROW_SCALES, scales.a())
                        .put(COLUMN_SCALES + b * Long.BYTES, scales.b())
                        .put(SCALE_STEP, scales.byRow() ? 1L : 0L);
            }
        }

        /** Returns the address of the slot for a source rank on a rank. */
        final long slot(int on, int source) {
            return buffers.address(on, slots.offset(half, source));
        }

        /**
         * Makes the tensor maps of the Bs. If all are row-major and have rows of whole boxes, one
         * load covers neighbouring boxes.
         */
        final TensorMap[] rights(MatrixLayout[] bs, Variant variant) {
            int tileColumns =
                    TILE_COLUMNS.get(variant.tile())
                            / (variant.kind() == Kind.GATHER_GATED ? 2 : 1);
            boolean grouped =
                    !variant.transposed()
                            && Arrays.stream(bs).allMatch(b -> b.columns() % BOX == 0);
            put("grouped", grouped ? 1 : 0);
            TensorMap[] maps = new TensorMap[bs.length];
            for (int i = 0; i < bs.length; i++) {
                MatrixLayout b = variant.transposed() ? bs[i].transposed() : bs[i];
                long stride = Math.max(b.rowStride(), b.columns()) * sizes.type().itemSize();
                int place = RIGHT + i * TensorMap.BYTES;
                long columns = Math.max(b.columns(), 1);
                long rows = Math.max(b.rows(), 1);
                maps[i] =
                        grouped
                                ? operand(
                                        place,
                                        new long[] {BOX, rows, columns / BOX},
                                        new long[] {stride, BOX * Short.BYTES},
                                        BOX,
                                        BOX,
                                        tileColumns / BOX)
                                : operand(
                                        place,
                                        new long[] {columns, rows},
                                        new long[] {stride},
                                        step(),
                                        variant.transposed() ? tileColumns : BOX);
            }
            return maps;
        }

        /** Enqueues the kernel on the current stream, within the operation. */
        final void launch(Operation operation, NDArray... used) {
            struct.put(TIMEOUT, operation.timeout().toNanos());
            CudaStream stream = streams.get();
            int most = Math.max(leastBlocks, buffers.takeTurn(operation));
            try (P2pStream current = buffers.currentStream(operation)) {
                kernel.launch(stream, size.withBlocksUpTo(most), arguments.clear().add(struct));
                current.keepAlive(used);
            }
        }
    }

    public final class Gather extends Launch {

        private final TensorMap left;
        private final TensorMap[] rights;
        private final TensorMap[] outs;

        private Gather(
                Slots slots,
                Sizes sizes,
                long inner,
                Variant variant,
                MatrixLayout[] bs,
                long pushers) {
            super(
                    slots,
                    SENT,
                    sizes,
                    inner,
                    variant,
                    Math.max(pushers, sizes.ranks() * sizes.tilesOfPart(variant.tile())),
                    0,
                    pushers);
            long rows = sizes.rows();
            long rowBytes = inner * sizes.type().itemSize();
            int boxRows = sizes.boxRows();
            left = operand(LEFT, new long[] {inner, rows}, new long[] {rowBytes}, step(), boxRows);
            operand(
                            ARRIVED,
                            new long[] {inner, rows, sizes.ranks()},
                            new long[] {rowBytes, slots.distance()},
                            step(),
                            boxRows,
                            1)
                    .place(slot(rank, 0));
            rights = rights(bs, variant);
            outs = new TensorMap[bs.length];
            for (int i = 0; i < bs.length; i++) {
                long columns = sizes.columns()[i] / (variant.kind() == Kind.GATHER_GATED ? 2 : 1);
                struct.put(COLUMNS + i * Long.BYTES, columns);
                long outBytes = columns * itemOfProduct();
                outs[i] =
                        product(
                                OUT + i * TensorMap.BYTES,
                                new long[] {columns, rows, sizes.ranks()},
                                outBytes,
                                rows * outBytes);
            }
        }

        /**
         * Enqueues the operator on the current stream, within the operation.
         *
         * @param shard the address of this rank's contiguous shard. All addresses are multiples of
         *     {@link TensorMap#ALIGNMENT}
         * @param gathered the address of the gathered A; 0 for none
         * @param scales the scales of A and each B; null for types without scales
         */
        public void run(
                Operation operation,
                long shard,
                long[] bs,
                long[] outs,
                long gathered,
                Product.Scales[] scales,
                NDArray... used) {
            left.place(shard);
            struct.put(SHARD, shard).put(GATHERED, gathered);
            for (int i = 0; i < bs.length; i++) {
                place(scales[i], i);
                rights[i].place(bs[i]);
                this.outs[i].place(outs[i]);
            }
            launch(operation, used);
        }
    }

    public final class Scatter extends Launch {

        private final TensorMap left;
        private final TensorMap right;
        private final TensorMap result;

        private Scatter(
                Slots slots,
                Sizes sizes,
                Variant variant,
                MatrixLayout a,
                MatrixLayout b,
                float factor) {
            super(
                    slots,
                    sizes.ranks() == PULLING_RANKS ? PULLED : SENT,
                    sizes,
                    a.columns(),
                    variant,
                    sizes.ranks() * sizes.tilesOfPart(variant.tile()),
                    Math.min(sizes.blocks(), sizes.tilesOfPart(variant.tile())),
                    0);
            long rows = sizes.rows();
            long columns = sizes.columns()[0];
            long item = itemOfProduct();
            long inner = a.columns();
            long rowBytes = Math.max(a.rowStride(), inner) * sizes.type().itemSize();
            put("pull", sizes.ranks() == PULLING_RANKS ? 1 : 0);
            struct.put(FACTOR, factor).put(COLUMNS, columns);
            left =
                    operand(
                            LEFT,
                            new long[] {Math.max(inner, 1), rows, sizes.ranks()},
                            new long[] {rowBytes, rows * rowBytes},
                            step(),
                            sizes.boxRows(),
                            1);
            product(
                            ARRIVED,
                            new long[] {columns, rows, sizes.ranks()},
                            columns * item,
                            slots.distance())
                    .place(slot(rank, 0));
            right = rights(new MatrixLayout[] {b}, variant)[0];
            TensorMap[] outs = new TensorMap[sizes.ranks()];
            for (int peer = 0; peer < sizes.ranks(); peer++) {
                outs[peer] =
                        product(
                                OUT + peer * TensorMap.BYTES,
                                new long[] {columns, rows},
                                columns * item);
                if (peer != rank) {
                    outs[peer].place(slot(peer, rank));
                }
            }
            result = outs[rank];
        }

        /**
         * Enqueues the operator on the current stream, within the operation.
         *
         * @param a the address of A. All addresses are multiples of {@link TensorMap#ALIGNMENT}
         * @param scales the scales of A and B; null for types without scales
         */
        public void run(
                Operation operation,
                long a,
                long b,
                long result,
                Product.Scales scales,
                NDArray... used) {
            place(scales, 0);
            if (a != 0 && b != 0) { // An address of 0 means no elements.
                left.place(a);
                right.place(b);
            }
            this.result.place(result);
            launch(operation, used);
        }
    }

    @Override
    public void close() {
        modules.values().forEach(CudaModule::close);
        modules.clear();
    }
}
