// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.djlx.llm.model.LayerConfig;
import org.djlx.nativeops.cuda.CudaAttribute;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaKernel;
import org.djlx.nativeops.cuda.CudaModule;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.cuda.KernelArguments;
import org.djlx.nativeops.cuda.KernelCache;
import org.djlx.nativeops.cuda.KernelCompiler;
import org.djlx.nativeops.cuda.KernelConstants;
import org.djlx.nativeops.cuda.KernelConstants.Layout;
import org.djlx.nativeops.cuda.KernelSource;
import org.djlx.nativeops.cuda.LaunchSize;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * Launches the kernels of {@code experts.cu}: mixtures of experts in decode steps, with weights of
 * 16 bits. The GPU chooses the experts by the rules of {@link ExpertRouter}, so one CUDA graph
 * serves every choice. The bits of a row's result depend neither on the other rows nor on their
 * number. Not thread-safe.
 */
final class ExpertKernels implements AutoCloseable {

    private static final KernelSource SOURCE = DecoderKernels.source("experts.cu");
    private static final KernelConstants CONSTANTS = new KernelConstants(SOURCE);
    private static final Layout ROUTE = CONSTANTS.struct("Route");
    private static final Layout CHUNK = CONSTANTS.struct("ExpertChunk");
    private static final Layout MATMUL = CONSTANTS.struct("ExpertMatmul");
    private static final Layout COMBINATION = CONSTANTS.struct("Combination");
    private static final int WARP = CONSTANTS.value("WARP");
    private static final int ROUTE_ROWS = CONSTANTS.value("ROUTE_WARPS"); // of a block
    private static final int MATMUL_THREADS = CONSTANTS.value("MATMUL_WARPS") * WARP;
    private static final int COMBINE_THREADS = 256;
    private static final int MIN_ROWS = 8; // pairs of a chunk, in the smallest variant
    private static final int MAX_ROWS = 64; // in the largest

    static final int MAX_EXPERTS = CONSTANTS.value("MAX_EXPERTS");
    static final int MAX_CHOSEN = CONSTANTS.value("MAX_CHOSEN"); // of a row

    /** The largest number of rows times chosen experts of a launch. */
    static final int MAX_PAIRS = CONSTANTS.value("MAX_PAIRS");

    private final List<CudaModule> modules = new ArrayList<>();
    private final List<Variant> variants = new ArrayList<>();
    private final CudaKernel route;
    private final CudaKernel combine;
    private final int multiprocessors;
    private final int maxPairs;

    private final int hidden;

    // For each pair:
    private final NDArray weights; // of the router
    private final NDArray activated; // the output of gate and up
    private final NDArray results; // the output of down

    /** Ints: chunk_count, blocks_ended; then chunks, sorted_pairs and experts_of_pairs. */
    private final NDArray routing;

    private final KernelArguments arguments = new KernelArguments();

    /**
     * A variant of the matmul.
     *
     * @param rows the largest number of pairs of a chunk
     * @param tiles the number of weight tiles of a group
     */
    private record Variant(CudaKernel kernel, int rows, int tiles, int sharedBytes) {}

    /**
     * A projection of all pairs, with arrays by address.
     *
     * @param gated whether it is gate and up: the output is {@code silu(gates) * values}
     * @param pairsOfX pair i is multiplied by row {@code i / pairsOfX} of x
     */
    private record Projection(
            boolean gated, long output, int width, long x, int depth, int pairsOfX) {}

    /**
     * Compiles the kernels for float16 or bfloat16, and allocates buffers.
     *
     * @param maxPairs the largest number of rows times chosen experts, up to {@link #MAX_PAIRS}
     * @param hidden the hidden size; a multiple of 8
     * @param inner the largest intermediate size of an expert on this rank
     */
    ExpertKernels(
            CudaDevice device,
            ScalarType type,
            NDManager manager,
            int maxPairs,
            int hidden,
            int inner) {
        this.maxPairs = maxPairs;
        this.hidden = hidden;
        multiprocessors = device.attribute(CudaAttribute.MULTIPROCESSOR_COUNT);
        weights = Torch.empty(manager, new Shape(maxPairs), ScalarType.FLOAT32);
        int chunkInts = CHUNK.byteSize() / Integer.BYTES;
        // The two counters take the space of a chunk, so that the chunks are aligned.
        Shape ints = new Shape((1L + maxPairs) * chunkInts + 2L * maxPairs);
        routing = manager.zeros(ints, DataType.INT32);
        activated = Torch.empty(manager, new Shape(maxPairs, inner), type);
        results = Torch.empty(manager, new Shape(maxPairs, hidden), type);
        KernelCompiler compiler = new KernelCompiler(KernelCache.user());
        prepare(device, compiler, type); // compiles all modules at the same time
        int maxSharedBytes = DecoderKernels.maxSharedBytes(device);
        try {
            for (int rows = MIN_ROWS; rows <= MAX_ROWS; rows *= 2) {
                modules.add(compiler.load(device, SOURCE, options(device, type, rows)));
            }
            route = modules.get(0).kernel("decode_route");
            combine = modules.get(0).kernel("combine_experts");
            for (int[] call : CONSTANTS.calls("EXPERT_MATMUL")) {
                int rows = call[0];
                int tiles = call[1];
                DecoderKernels.MatmulMemory memory =
                        DecoderKernels.MatmulMemory.of(
                                rows, tiles, call[2], 16, true, maxSharedBytes);
                if (memory.isEnough()) {
                    CudaModule module = modules.get(Integer.numberOfTrailingZeros(rows / MIN_ROWS));
                    CudaKernel kernel = module.kernel("decode_expert_matmul_" + rows + "_" + tiles);
                    kernel.allowSharedMemory(maxSharedBytes);
                    variants.add(new Variant(kernel, rows, tiles, memory.bytes()));
                }
            }
        } catch (Throwable e) {
            close();
            throw e;
        }
    }

    /** Starts compiling the kernels on other threads. The constructor reports a failure. */
    static CompletableFuture<Void> prepare(
            CudaDevice device, KernelCompiler compiler, ScalarType type) {
        List<CompletableFuture<?>> all = new ArrayList<>();
        for (int rows = MIN_ROWS; rows <= MAX_ROWS; rows *= 2) {
            all.add(compiler.prepare(device, SOURCE, options(device, type, rows)));
        }
        return CompletableFuture.allOf(all.toArray(CompletableFuture[]::new));
    }

    private static String[] options(CudaDevice device, ScalarType type, int rows) {
        return new String[] {
            "-DTYPE=" + DecoderKernels.TYPES.get(type),
            "-DROWS=" + rows,
            "-DSHARED_BYTES=" + DecoderKernels.maxSharedBytes(device)
        };
    }

    /** Returns whether the kernels support an MLP with experts, whatever its sizes. */
    static boolean supports(LayerConfig.Mlp mlp) {
        return mlp.activation() == LayerConfig.Activation.SILU
                && !mlp.bias()
                && mlp.experts().count() <= MAX_EXPERTS
                && mlp.experts().chosen() <= MAX_CHOSEN;
    }

    /** Returns the addresses of the experts' weights: all of gate and up, then all of down. */
    static NDArray table(NDManager manager, List<ModelWeights.Mlp> experts) {
        long[] addresses = new long[2 * experts.size()];
        for (int i = 0; i < experts.size(); i++) {
            addresses[i] = Torch.dataPointer(experts.get(i).gateUp().weight());
            addresses[experts.size() + i] = Torch.dataPointer(experts.get(i).down().weight());
        }
        return manager.create(addresses);
    }

    /**
     * A mixture of experts, with arrays by address.
     *
     * @param inner the intermediate size of an expert on this rank; a multiple of 8
     * @param table the {@link #table} of the experts' weights
     * @param logits of the router, a row for each row of x, {@code stride} elements apart
     * @param positions an int for each row, negative if the row has no token: its output is 0
     * @param x the input, of shape (rows, hidden)
     * @param output receives this rank's part of the result, of shape (rows, hidden)
     */
    record Mixture(
            LayerConfig.Experts experts,
            int inner,
            long table,
            long logits,
            long stride,
            long positions,
            long x,
            long output) {}

    /**
     * Computes a mixture of experts. Programmatic dependent launch: the {@code table} must be
     * complete before the previous kernel starts, all other input when it ends.
     */
    void launch(CudaStream stream, int rows, Mixture mixture) {
        int chosen = mixture.experts.chosen();
        int pairs = rows * chosen;
        if (pairs > maxPairs) {
            throw new IllegalArgumentException(
                    "%d rows with %d experts each are %d pairs, but the buffers hold %d"
                            .formatted(rows, chosen, pairs, maxPairs));
        }
        int chunkRows = chunkRows(rows, mixture.experts);
        long expectedChunks = Math.min(pairs, mixture.experts.count()); // if choices are random
        long inner = Torch.dataPointer(activated);
        long outer = Torch.dataPointer(results);
        Projection gateUp = new Projection(true, inner, mixture.inner, mixture.x, hidden, chosen);
        Projection down = new Projection(false, outer, hidden, inner, mixture.inner, 1);
        route(stream, rows, chunkRows, mixture);
        multiply(stream, chunkRows, expectedChunks, gateUp);
        multiply(stream, chunkRows, expectedChunks, down);
        combine(
                stream,
                combine,
                arguments,
                new Combination(
                        mixture.output, outer, Torch.dataPointer(weights), rows, chosen, hidden));
    }

    /** Chooses the experts of each row, and lists pairs and chunks. */
    private void route(CudaStream stream, int rows, int chunkRows, Mixture mixture) {
        arguments
                .clear()
                .addStruct(ROUTE)
                .put("logits", mixture.logits)
                .put("positions", mixture.positions)
                .put("weights", Torch.dataPointer(weights))
                .put("sorted_pairs", sortedPairs())
                .put("chunks", chunks())
                .put("chunk_count", Torch.dataPointer(routing))
                .put("blocks_ended", Torch.dataPointer(routing) + Integer.BYTES)
                .put("experts_of_pairs", sortedPairs() + (long) maxPairs * Integer.BYTES)
                .put("addresses", mixture.table)
                .put("rows", rows)
                .put("experts", mixture.experts.count())
                .put("chosen", mixture.experts.chosen())
                .put("stride", mixture.stride)
                .put("normalizes", mixture.experts.normalizes() ? 1 : 0)
                .put("chunk_rows", chunkRows);
        int blocks = (int) DecoderKernels.ceilDiv(rows, ROUTE_ROWS);
        LaunchSize size = LaunchSize.of(blocks, ROUTE_ROWS * WARP);
        route.launch(stream, size.asDependent(), arguments);
    }

    /** Multiplies the pairs of each chunk by the weight of its expert. */
    private void multiply(
            CudaStream stream, int chunkRows, long expectedChunks, Projection projection) {
        Variant variant =
                variants.stream()
                        .filter(one -> one.rows == chunkRows)
                        .min(Comparator.comparingLong(one -> cost(one, expectedChunks, projection)))
                        .orElseThrow();
        arguments
                .clear()
                .addStruct(MATMUL)
                .put("output", projection.output)
                .put("x", projection.x)
                .put("chunks", chunks())
                .put("chunk_count", Torch.dataPointer(routing))
                .put("sorted_pairs", sortedPairs())
                .put("pairs_of_x", projection.pairsOfX)
                .put("width", projection.width)
                .put("depth", projection.depth)
                .put("gated", projection.gated ? 1 : 0);
        LaunchSize size =
                LaunchSize.of(multiprocessors, MATMUL_THREADS).withShared(variant.sharedBytes);
        variant.kernel.launch(stream, size.asDependent(), arguments);
    }

    private long cost(Variant variant, long chunks, Projection projection) {
        long tiles = DecoderKernels.tiles(projection.width, projection.gated);
        long groups = DecoderKernels.ceilDiv(tiles, variant.tiles);
        return DecoderKernels.cost(groups * chunks, multiprocessors, variant.tiles, variant.rows);
    }

    /**
     * The input and output of {@code combine_experts}, with arrays by address.
     *
     * @param results of each pair
     * @param weights of each pair, by the router
     */
    record Combination(long output, long results, long weights, int rows, int chosen, int hidden) {}

    /** Adds up the weighted results of each row by {@code combine_experts}. */
    static void combine(
            CudaStream stream,
            CudaKernel kernel,
            KernelArguments arguments,
            Combination combination) {
        arguments
                .clear()
                .addStruct(COMBINATION)
                .put("output", combination.output)
                .put("results", combination.results)
                .put("weights", combination.weights)
                .put("chosen", combination.chosen)
                .put("width", combination.hidden);
        int packs = combination.hidden / DecoderKernels.PACK;
        int blocks = (int) DecoderKernels.ceilDiv(packs, COMBINE_THREADS);
        LaunchSize size = LaunchSize.of(blocks, COMBINE_THREADS).withGrid(combination.rows, 1);
        kernel.launch(stream, size.asDependent(), arguments);
    }

    private long chunks() {
        return Torch.dataPointer(routing) + CHUNK.byteSize();
    }

    private long sortedPairs() {
        return chunks() + (long) maxPairs * CHUNK.byteSize();
    }

    /**
     * Returns the largest number of pairs of a chunk: that of the smallest variant that has at
     * least twice the mean number of pairs of an expert, so that most weights are read once. An
     * expert has at most one pair of each row. If no variant is large enough, the largest.
     */
    private int chunkRows(int rows, LayerConfig.Experts experts) {
        long twiceMean = DecoderKernels.ceilDiv(2L * rows * experts.chosen(), experts.count());
        long wanted = Math.min(rows, twiceMean);
        return variants.stream()
                .mapToInt(Variant::rows)
                .filter(most -> most >= wanted)
                .min()
                .orElse(variants.stream().mapToInt(Variant::rows).max().orElseThrow());
    }

    @Override
    public void close() {
        modules.forEach(CudaModule::close);
    }
}
