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
import java.util.function.Function;
import org.djlx.llm.model.LayerConfig;
import org.djlx.nativeops.NativeLibrary;
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
 * 16 bits. The GPU chooses the experts, as {@link ExpertRouter} does, so a CUDA graph serves every
 * choice. Bit for bit, the result of a row depends neither on the other rows nor on their number.
 * Not thread-safe.
 */
final class ExpertKernels implements AutoCloseable {

    private static final KernelSource SOURCE =
            KernelSource.ofResource(NativeLibrary.class, "decoder/experts.cu");
    private static final KernelConstants CONSTANTS = new KernelConstants(SOURCE);
    private static final Layout ROUTE = CONSTANTS.struct("Route");
    private static final Layout CHUNK = CONSTANTS.struct("ExpertChunk");
    private static final Layout MATMUL = CONSTANTS.struct("ExpertMatmul");
    private static final Layout COMBINATION = CONSTANTS.struct("Combination");
    private static final int WARP = CONSTANTS.value("WARP");
    private static final int ROUTE_ROWS = CONSTANTS.value("ROUTE_WARPS"); // of a block
    private static final int MATMUL_THREADS = CONSTANTS.value("MATMUL_WARPS") * WARP;
    private static final int COMBINE_THREADS = 256;
    private static final int PACK = 8; // elements of 16 bytes
    private static final int TILE = 16; // rows of a weight
    private static final int FEWEST_ROWS = 8; // of the variants
    private static final int MOST_ROWS = 64;

    static final int MAX_EXPERTS = CONSTANTS.value("MAX_EXPERTS");
    static final int MAX_CHOSEN = CONSTANTS.value("MAX_CHOSEN");
    static final int MAX_PAIRS = CONSTANTS.value("MAX_PAIRS");

    private final List<CudaModule> modules = new ArrayList<>();
    private final List<Variant> variants = new ArrayList<>();
    private final CudaKernel route;
    private final CudaKernel combine;
    private final int multiprocessors;
    private final NDArray weights; // of pairs
    private final NDArray
            routing; // the numbers of chunks and of ended blocks, the chunks, pairs, their experts
    private final NDArray activated; // of pairs
    private final NDArray results; // of pairs
    private final int maxPairs;
    private final int hidden;
    private final KernelArguments arguments = new KernelArguments();

    /** A variant of the matmul: the most pairs of a chunk, the weight tiles of a group. */
    private record Variant(CudaKernel kernel, int rows, int tiles, int sharedBytes) {

        /** Returns the groups of an expert. */
        long groups(long width, boolean gated) {
            return ceilDiv(width, (gated ? TILE / 2 : TILE) * tiles);
        }
    }

    /**
     * Compiles the kernels for float16 or bfloat16, and allocates buffers.
     *
     * @param maxPairs the most rows times chosen experts, up to {@link #MAX_PAIRS}
     * @param hidden the size of a row; a multiple of 8
     * @param inner the largest size of an expert's inner rows on this rank
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
        // The counters take the room of a chunk, so that the chunks are aligned.
        Shape ints = new Shape((1L + maxPairs) * chunkInts + 2L * maxPairs);
        routing = manager.zeros(ints, DataType.INT32);
        activated = Torch.empty(manager, new Shape(maxPairs, inner), type);
        results = Torch.empty(manager, new Shape(maxPairs, hidden), type);
        KernelCompiler compiler = new KernelCompiler(KernelCache.user());
        prepare(device, compiler, type); // compiles all modules at the same time
        int maxSharedBytes = maxSharedBytes(device);
        try {
            for (int rows = FEWEST_ROWS; rows <= MOST_ROWS; rows *= 2) {
                modules.add(compiler.load(device, SOURCE, options(device, type, rows)));
            }
            route = modules.get(0).kernel("decode_route");
            combine = modules.get(0).kernel("decode_combine");
            for (int[] call : CONSTANTS.calls("EXPERT_MATMUL")) {
                DecoderKernels.MatmulMemory memory =
                        DecoderKernels.MatmulMemory.of(
                                call[0], call[1], call[2], 16, true, maxSharedBytes);
                if (memory.isEnough()) {
                    int part = Integer.numberOfTrailingZeros(call[0] / FEWEST_ROWS);
                    CudaKernel kernel =
                            modules.get(part)
                                    .kernel("decode_expert_matmul_" + call[0] + "_" + call[1]);
                    kernel.allowSharedMemory(maxSharedBytes);
                    variants.add(new Variant(kernel, call[0], call[1], memory.bytes()));
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
        for (int rows = FEWEST_ROWS; rows <= MOST_ROWS; rows *= 2) {
            all.add(compiler.prepare(device, SOURCE, options(device, type, rows)));
        }
        return CompletableFuture.allOf(all.toArray(CompletableFuture[]::new));
    }

    private static String[] options(CudaDevice device, ScalarType type, int rows) {
        return new String[] {
            "-DTYPE=" + DecoderKernels.TYPES.get(type),
            "-DROWS=" + rows,
            "-DSHARED_BYTES=" + maxSharedBytes(device)
        };
    }

    private static int maxSharedBytes(CudaDevice device) {
        return device.attribute(CudaAttribute.MAX_SHARED_MEMORY_PER_BLOCK);
    }

    /** Returns whether the kernels compute such experts, apart from their size. */
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
     * A mixture of experts and its arrays, by address.
     *
     * @param inner the size of the experts' inner rows on this rank; a multiple of 8
     * @param table as {@link #table} returns it
     * @param logits of the router, a row for each row of x, {@code stride} elements apart
     * @param positions an int for each row, negative if the row has no token: its output is 0
     * @param x the rows
     * @param output receives the sums of the chosen experts' weighted results
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
     * Computes a mixture of experts. Programmatic dependent launch: {@code positions} must be
     * complete before the previous kernel starts.
     */
    void launch(CudaStream stream, int rows, Mixture of) {
        int chosen = of.experts.chosen();
        int count = of.experts.count();
        int pairs = rows * chosen;
        if (pairs > maxPairs) {
            throw new IllegalArgumentException(
                    "%d rows with %d experts each are more than %d pairs"
                            .formatted(rows, chosen, maxPairs));
        }
        int chunkRows = chunkRows(rows, of.experts);
        arguments
                .clear()
                .addStruct(ROUTE)
                .put("logits", of.logits)
                .put("positions", of.positions)
                .put("weights", Torch.dataPointer(weights))
                .put("pairs", pairs())
                .put("chunks", chunks())
                .put("chunk_count", Torch.dataPointer(routing))
                .put("blocks_ended", Torch.dataPointer(routing) + Integer.BYTES)
                .put("experts_of_pairs", pairs() + (long) maxPairs * Integer.BYTES)
                .put("addresses", of.table)
                .put("rows", rows)
                .put("experts", count)
                .put("chosen", chosen)
                .put("stride", of.stride)
                .put("normalizes", of.experts.normalizes() ? 1 : 0)
                .put("chunk_rows", chunkRows);
        LaunchSize routeSize =
                LaunchSize.of((int) ceilDiv(rows, ROUTE_ROWS), ROUTE_ROWS * WARP).asDependent();
        route.launch(stream, routeSize, arguments);
        // Chunks, if the experts are chosen at random.
        long expected = Math.min(pairs, count);
        multiply(
                stream,
                variant(chunkRows, groups -> groups.groups(of.inner, true) * expected),
                to ->
                        to.put("output", Torch.dataPointer(activated))
                                .put("x", of.x)
                                .put("pairs_of_x", chosen)
                                .put("width", of.inner)
                                .put("depth", hidden)
                                .put("gated", 1));
        multiply(
                stream,
                variant(chunkRows, groups -> groups.groups(hidden, false) * expected),
                to ->
                        to.put("output", Torch.dataPointer(results))
                                .put("x", Torch.dataPointer(activated))
                                .put("pairs_of_x", 1)
                                .put("width", hidden)
                                .put("depth", of.inner)
                                .put("gated", 0));
        arguments
                .clear()
                .addStruct(COMBINATION)
                .put("output", of.output)
                .put("results", Torch.dataPointer(results))
                .put("weights", Torch.dataPointer(weights))
                .put("chosen", chosen)
                .put("width", hidden);
        int blocks = (int) ceilDiv(hidden / PACK, COMBINE_THREADS);
        LaunchSize size = LaunchSize.of(blocks, COMBINE_THREADS).withGrid(rows, 1);
        combine.launch(stream, size.asDependent(), arguments);
    }

    private long chunks() {
        return Torch.dataPointer(routing) + CHUNK.byteSize();
    }

    private long pairs() {
        return chunks() + (long) maxPairs * CHUNK.byteSize();
    }

    /**
     * Returns the most pairs of a chunk: at least twice the mean pairs of an expert, so that most
     * weights are read once, but no more than an expert can have.
     */
    private int chunkRows(int rows, LayerConfig.Experts experts) {
        long wanted = Math.min(rows, ceilDiv(2L * rows * experts.chosen(), experts.count()));
        return variants.stream()
                .mapToInt(Variant::rows)
                .filter(most -> most >= wanted)
                .min()
                .orElse(variants.stream().mapToInt(Variant::rows).max().orElseThrow());
    }

    /**
     * Returns the variant whose busiest SM reads the fewest rows: of weights, and half of those of
     * x, which come from L2.
     */
    private Variant variant(int chunkRows, Function<Variant, Long> groups) {
        return variants.stream()
                .filter(variant -> variant.rows == chunkRows)
                .min(
                        Comparator.comparingLong(
                                variant ->
                                        ceilDiv(groups.apply(variant), multiprocessors)
                                                * (TILE * variant.tiles + variant.rows / 2)))
                .orElseThrow();
    }

    private void multiply(
            CudaStream stream, Variant variant, Function<KernelArguments, KernelArguments> put) {
        put.apply(arguments.clear().addStruct(MATMUL))
                .put("chunks", chunks())
                .put("chunk_count", Torch.dataPointer(routing))
                .put("pairs", pairs());
        LaunchSize size =
                LaunchSize.of(multiprocessors, MATMUL_THREADS).withShared(variant.sharedBytes);
        variant.kernel.launch(stream, size.asDependent(), arguments);
    }

    private static long ceilDiv(long a, long b) {
        return (a + b - 1) / b;
    }

    @Override
    public void close() {
        modules.forEach(CudaModule::close);
    }
}
