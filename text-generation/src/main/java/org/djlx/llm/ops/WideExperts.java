// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import java.util.HashMap;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.function.Function;
import org.djlx.llm.model.LayerConfig;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaKernel;
import org.djlx.nativeops.cuda.CudaModule;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.cuda.KernelArguments;
import org.djlx.nativeops.cuda.KernelCompiler;
import org.djlx.nativeops.cuda.KernelConstants;
import org.djlx.nativeops.cuda.KernelConstants.Layout;
import org.djlx.nativeops.cuda.KernelSource;
import org.djlx.nativeops.cuda.KernelStruct;
import org.djlx.nativeops.cuda.LaunchSize;
import org.djlx.nativeops.cuda.TensorMap;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * Launches the kernels of {@code wide_experts.cu}: mixtures of experts in prefills, on Hopper GPUs,
 * with weights of 16 bits. The GPU chooses the experts by the rules of {@link ExpertRouter}; the
 * host does not wait. The bits of a row's result depend neither on the other rows nor on their
 * number. Not thread-safe.
 */
final class WideExperts implements AutoCloseable {

    /** The most rows times chosen experts of a launch. More are computed in parts. */
    static final int MAX_PAIRS = 32768;

    private static final KernelSource SOURCE = DecoderKernels.source("wide_experts.cu");
    private static final KernelConstants CONSTANTS = new KernelConstants(SOURCE);
    private static final Layout ROUTE = CONSTANTS.struct("WideRoute");
    private static final Layout CHUNK = CONSTANTS.struct("WideChunk");
    private static final Layout MATMUL = CONSTANTS.struct("WideMatmul");
    private static final Layout TILES = CONSTANTS.struct("ExpertTiles");
    private static final int ROUTE_ROWS = CONSTANTS.value("ROUTE_WARPS"); // of a block
    private static final int ROUTE_THREADS = ROUTE_ROWS * CONSTANTS.value("WARP");
    private static final int GATHER_THREADS = 256;
    private static final int COLUMNS = CONSTANTS.calls("EXPERT_TILES").get(0)[1]; // of a tile

    private final CurrentStreams streams;
    private final ScalarType type;
    private final NDManager manager;
    private final CudaModule module;
    private final CudaKernel choose;
    private final CudaKernel list;
    private final CudaKernel gather;
    private final CudaKernel combine;
    private final Map<Integer, CudaKernel> tiles; // by the largest number of pairs of a chunk
    private final NDArray counters; // counts, 0 between mixtures; then next
    private final Map<ModelWeights.Linear, Weights> weights = new IdentityHashMap<>(); // by router
    private final KernelStruct struct = new KernelStruct(TILES.byteSize());
    private final KernelArguments arguments = new KernelArguments();

    /** The tensor maps of a layer's experts, in the memory of the GPU. */
    private record Weights(NDArray gateUp, NDArray down) {}

    /**
     * The buffers of a launch.
     *
     * @param weights the router's weight for each pair, in float32
     * @param ints chunk_count, experts_of_pairs, sorted_pairs, chunks
     * @param gathered rows of x in the order of sorted_pairs; later the result of each pair
     * @param activated the output of gate and up, in the order of sorted_pairs
     */
    private record Memory(NDArray weights, NDArray ints, NDArray gathered, NDArray activated) {

        long expertsOfPairs() {
            return Torch.dataPointer(ints) + Integer.BYTES;
        }

        long sortedPairs() {
            return expertsOfPairs() + weights.size() * Integer.BYTES;
        }

        long chunks() {
            return sortedPairs() + weights.size() * Integer.BYTES;
        }
    }

    /**
     * Compiles the kernels for float16 or bfloat16. Kernels run on the current stream.
     *
     * @param manager owns counters and tensor maps
     */
    WideExperts(
            CudaDevice device,
            CurrentStreams streams,
            KernelCompiler compiler,
            ScalarType type,
            NDManager manager) {
        this.streams = streams;
        this.type = type;
        this.manager = manager;
        counters = manager.zeros(new Shape(2, ExpertKernels.MAX_EXPERTS), DataType.INT32);
        module = compiler.load(device, SOURCE, option(type));
        choose = module.kernel("choose_experts");
        list = module.kernel("list_chunks");
        gather = module.kernel("gather_rows");
        combine = module.kernel("combine_experts");
        tiles = new HashMap<>();
        for (int[] call : CONSTANTS.calls("EXPERT_TILES")) {
            CudaKernel kernel = module.kernel("expert_tiles_%d_%d".formatted(call[0], call[1]));
            kernel.allowSharedMemory(WideMatmul.ringBytes(call[0]));
            tiles.put(call[0], kernel);
        }
    }

    /** Returns whether a GPU has the kernels. */
    static boolean isSupported(CudaDevice device) {
        return DecoderKernels.isHopper(device);
    }

    /** Starts compiling the kernels on other threads. The constructor reports a failure. */
    static CompletableFuture<Void> prepare(
            CudaDevice device, KernelCompiler compiler, ScalarType type) {
        return compiler.prepare(device, SOURCE, option(type));
    }

    private static String option(ScalarType type) {
        return "-DTYPE=" + DecoderKernels.TYPES.get(type);
    }

    /** Adds the experts of a router. Their weights must stay where they are. */
    void add(ModelWeights.Linear router, List<ModelWeights.Mlp> experts) {
        NDArray gateUp = maps(experts, ModelWeights.Mlp::gateUp);
        weights.put(router, new Weights(gateUp, maps(experts, ModelWeights.Mlp::down)));
    }

    private NDArray maps(
            List<ModelWeights.Mlp> experts,
            Function<ModelWeights.Mlp, ModelWeights.Linear> projection) {
        KernelStruct maps = new KernelStruct(experts.size() * TensorMap.BYTES);
        for (int i = 0; i < experts.size(); i++) {
            NDArray weight = projection.apply(experts.get(i)).weight(); // transposed
            long depth = weight.getShape().get(0);
            putMap(
                    maps,
                    i * TensorMap.BYTES,
                    Torch.dataPointer(weight),
                    weight.getShape().get(1),
                    depth,
                    COLUMNS / WideMatmul.QUARTERS);
        }
        return manager.create(maps.bytes(), new Shape(maps.byteSize()), DataType.UINT8);
    }

    private void putMap(
            KernelStruct to, int offset, long address, long rows, long depth, int boxRows) {
        long[] sizes = {depth, rows};
        long[] strides = {depth * type.itemSize()};
        int boxColumns = WideMatmul.BOX_BYTES / type.itemSize();
        new TensorMap(to, offset, type, sizes, strides, boxColumns, boxRows).place(address);
    }

    /**
     * Returns this rank's partial sums of a mixture, of the shape of x.
     *
     * @param x of shape (rows, hidden), contiguous; its manager owns the result
     * @param logits of shape (rows, experts), contiguous
     * @param router whose experts were {@linkplain #add added}
     * @param inner the intermediate size of an expert on this rank, a multiple of 8
     */
    NDArray compute(
            NDArray x,
            NDArray logits,
            ModelWeights.Linear router,
            LayerConfig.Experts experts,
            int inner) {
        NDArray output = Torch.empty(x.getManager(), x.getShape(), type);
        int rows = (int) x.getShape().get(0);
        int most = MAX_PAIRS / experts.chosen();
        for (int first = 0; first < rows; first += most) {
            int count = Math.min(most, rows - first);
            try (NDManager scratch = x.getManager().newSubManager()) {
                launch(
                        scratch,
                        Torch.narrow(x, 0, first, count),
                        Torch.narrow(logits, 0, first, count),
                        Torch.narrow(output, 0, first, count),
                        weights.get(router),
                        experts,
                        inner);
            }
        }
        return output;
    }

    private void launch(
            NDManager scratch,
            NDArray x,
            NDArray logits,
            NDArray output,
            Weights of,
            LayerConfig.Experts experts,
            int inner) {
        int rows = (int) x.getShape().get(0);
        int hidden = (int) x.getShape().get(1);
        int pairs = rows * experts.chosen();
        int chunkRows = chunkRows(pairs, experts.count());
        // Each expert has at most one chunk that is not full.
        int maxChunks = pairs / chunkRows + Math.min(pairs, experts.count());
        long chunkInts = (long) maxChunks * CHUNK.byteSize() / Integer.BYTES;
        Memory memory =
                new Memory(
                        Torch.empty(scratch, new Shape(pairs), ScalarType.FLOAT32),
                        Torch.empty(
                                scratch, new Shape(1 + 2L * pairs + chunkInts), ScalarType.INT32),
                        Torch.empty(scratch, new Shape(pairs, hidden), type),
                        Torch.empty(scratch, new Shape(pairs, inner), type));
        CudaStream stream = streams.get();
        route(stream, x, logits, chunkRows, experts, memory);
        long gathered = Torch.dataPointer(memory.gathered);
        long activated = Torch.dataPointer(memory.activated);
        Projection gateUp = new Projection(true, of.gateUp, activated, inner, gathered, hidden);
        Projection down = new Projection(false, of.down, gathered, hidden, activated, inner);
        multiply(stream, gateUp, pairs, chunkRows, maxChunks, memory);
        multiply(stream, down, pairs, chunkRows, maxChunks, memory);
        ExpertKernels.combine(
                stream,
                combine,
                arguments,
                new ExpertKernels.Combination(
                        Torch.dataPointer(output),
                        gathered,
                        Torch.dataPointer(memory.weights),
                        rows,
                        experts.chosen(),
                        hidden));
    }

    /** Returns 64 if experts have up to 32 pairs on average, so most have one chunk; else 128. */
    private int chunkRows(int pairs, int experts) {
        int few = WideMatmul.MAX_ROWS / 2;
        return 2L * pairs <= (long) few * experts ? few : WideMatmul.MAX_ROWS;
    }

    /** Chooses the experts, lists pairs and chunks, and gathers the rows of x. */
    private void route(
            CudaStream stream,
            NDArray x,
            NDArray logits,
            int chunkRows,
            LayerConfig.Experts experts,
            Memory memory) {
        long rows = x.getShape().get(0);
        arguments
                .clear()
                .addStruct(ROUTE)
                .put("logits", Torch.dataPointer(logits))
                .put("positions", 0)
                .put("weights", Torch.dataPointer(memory.weights))
                .put("experts_of_pairs", memory.expertsOfPairs())
                .put("counts", Torch.dataPointer(counters))
                .put(
                        "next",
                        Torch.dataPointer(counters)
                                + (long) ExpertKernels.MAX_EXPERTS * Integer.BYTES)
                .put("chunks", memory.chunks())
                .put("chunk_count", Torch.dataPointer(memory.ints))
                .put("sorted_pairs", memory.sortedPairs())
                .put("x", Torch.dataPointer(x))
                .put("gathered", Torch.dataPointer(memory.gathered))
                .put("rows", rows)
                .put("experts", experts.count())
                .put("chosen", experts.chosen())
                .put("stride", experts.count())
                .put("normalizes", experts.normalizes() ? 1 : 0)
                .put("chunk_rows", chunkRows)
                .put("hidden", x.getShape().get(1));
        int blocks = (int) DecoderKernels.ceilDiv(rows, ROUTE_ROWS);
        choose.launch(stream, LaunchSize.of(blocks, ROUTE_THREADS).asDependent(), arguments);
        LaunchSize one = LaunchSize.of(1, ExpertKernels.MAX_EXPERTS);
        list.launch(stream, one.asDependent(), arguments);
        LaunchSize all = LaunchSize.of((int) rows, GATHER_THREADS);
        gather.launch(stream, all.asDependent(), arguments);
    }

    /** A projection of all pairs: tensor maps of the weights; x and the output by address. */
    private record Projection(
            boolean gated, NDArray maps, long output, int width, long x, int depth) {}

    private void multiply(
            CudaStream stream,
            Projection of,
            int pairs,
            int chunkRows,
            int maxChunks,
            Memory memory) {
        int weightTiles =
                (int) DecoderKernels.ceilDiv(of.gated ? 2L * of.width : of.width, COLUMNS);
        int map = TILES.offset("matmul") + MATMUL.offset("x");
        putMap(struct, map, of.x, pairs, of.depth, chunkRows);
        put("matmul.output", of.output);
        put("matmul.width", of.width);
        put("matmul.depth", of.depth);
        put("matmul.stride", of.width);
        put("matmul.gated", of.gated ? 1 : 0);
        put("weights", Torch.dataPointer(of.maps));
        put("chunks", memory.chunks());
        put("chunk_count", Torch.dataPointer(memory.ints));
        put("sorted_pairs", of.gated ? 0 : memory.sortedPairs());
        put("tiles", weightTiles);
        LaunchSize size =
                LaunchSize.of(weightTiles * maxChunks, WideMatmul.THREADS)
                        .withShared(WideMatmul.ringBytes(chunkRows));
        tiles.get(chunkRows).launch(stream, size.asDependent(), arguments.clear().add(struct));
    }

    private void put(String member, long value) {
        struct.put(TILES.offset(member), value);
    }

    @Override
    public void close() {
        module.close();
    }
}
