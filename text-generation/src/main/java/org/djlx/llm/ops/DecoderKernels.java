// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.ndarray.NDManager;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.function.Consumer;
import java.util.function.ObjLongConsumer;
import java.util.stream.IntStream;
import org.djlx.llm.model.Quantization;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaAttribute;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaKernel;
import org.djlx.nativeops.cuda.CudaModule;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.cuda.KernelArguments;
import org.djlx.nativeops.cuda.KernelCompiler;
import org.djlx.nativeops.cuda.KernelConstants;
import org.djlx.nativeops.cuda.KernelConstants.Layout;
import org.djlx.nativeops.cuda.KernelSource;
import org.djlx.nativeops.cuda.LaunchSize;
import org.djlx.nativeops.torch.ScalarType;

/**
 * Launches the kernels of {@code decoder.cu}, {@code matmul.cu} and {@code sampling.cu} on one GPU,
 * compiled for a {@link Model}; also compiles the kernels of {@link MatmulChain} and {@link
 * WideMatmul}. A caller puts the members of a kernel's struct by name; the files describe them.
 * Arrays are given by address. Matmuls and attention use programmatic dependent launch: they may
 * start while the previous kernel still runs. Not thread-safe.
 */
final class DecoderKernels implements AutoCloseable {

    /** The largest number of rows of a step: its tokens. */
    static final int MAX_ROWS = 256;

    /** The largest number of rows of {@link #matmul} at a time, for weights of 16 bits. */
    static final int MATMUL_ROWS = 64;

    /** The largest number of rows of {@link #matmul} at a time, for weights of 8 or 4 bits. */
    static final int QUANTIZED_ROWS = 32;

    /** The tokens of a chunk of a sequence, which a thread block of attention reads. */
    static final int CHUNK = 128;

    /** The floats that a chunk writes in addition to the elements of a head. */
    static final int CHUNK_EXTRA = 2;

    /** The floats that {@link #top} and {@link #sample} write for each row. */
    static final int TOP_FLOATS = 4;

    /** The most logits that {@link #sample} lists for a row. */
    static final int MAX_TOP_LOGPROBS = 20;

    /** The bytes of a listed logit: its token as an int, and a float. */
    static final int MOST_BYTES = 8;

    /** Stands for the token that {@link #sample} returned last for the sequence. */
    static final int LAST_SAMPLED = -2;

    /** The largest vocabulary: token ids are stored as floats. */
    static final int MAX_TOKENS = 1 << 24;

    /** The thread blocks that search the logits of a row. Each writes its own result. */
    static final int TOP_BLOCKS = 16;

    private static final KernelSource SOURCE = source("decoder.cu");
    private static final KernelSource MATMUL_SOURCE = source("matmul.cu");
    private static final KernelSource SAMPLING_SOURCE = source("sampling.cu");
    private static final KernelConstants CONSTANTS = new KernelConstants(MATMUL_SOURCE);
    private static final KernelConstants SAMPLING = new KernelConstants(SAMPLING_SOURCE);
    private static final int WARP = CONSTANTS.value("WARP");

    /** The sampling parameters of a row for {@link #sample}; a multiple of 8 bytes. */
    static final Layout SAMPLING_PARAMETERS = SAMPLING.struct("SamplingParameters");

    private static final int TOP_THREADS = SAMPLING.value("TOP_THREADS");
    private static final int SAMPLE_THREADS = SAMPLING.value("SAMPLE_THREADS");
    private static final int SAMPLE_CLUSTER = SAMPLING.value("SAMPLE_CLUSTER");
    private static final int CLUSTER_THREADS = SAMPLING.value("CLUSTER_THREADS");
    private static final int EMBED_THREADS = 256;
    private static final int MATMUL_THREADS = CONSTANTS.value("MATMUL_WARPS") * WARP;
    private static final int PREFILL_THREADS = 256;
    private static final KernelConstants ATTENTION = new KernelConstants(SOURCE);
    private static final int ATTENTION_THREADS = ATTENTION.value("ATTENTION_WARPS") * WARP;
    private static final Layout EMBEDDING = ATTENTION.struct("Embedding");
    private static final Layout MATMUL = CONSTANTS.struct("Matmul");
    private static final Layout ATTENTION_ARRAYS = ATTENTION.struct("Attention");
    private static final Layout LOGITS = SAMPLING.struct("Logits");
    private static final Layout SAMPLING_ARRAYS = SAMPLING.struct("Sampling");
    private static final Layout ROTATION = ATTENTION.struct("Rotation");
    private static final Layout GATHERING = ATTENTION.struct("Gathering");
    private static final Layout HEAD_NORMS = ATTENTION.struct("HeadNorms");
    private static final Layout ACTIVATION = ATTENTION.struct("Activation");
    private static final int MAX_SPAN = 16; // chunks: a thread block of a longer one would end last
    private static final int TILE = 16; // rows of weights of one tensor core instruction
    private static final int MIN_STAGES = 2;

    /**
     * The variants of the matmul kernel: largest number of rows, weight tiles of a group, largest
     * number of stages.
     */
    private static final List<int[]> MATMULS = CONSTANTS.calls("MATMUL");

    private static final int MAX_HEAD = 128;
    private static final int MAX_GROUP_SIZE = 8;
    static final int PACK = 8; // elements of 16 bytes
    private static final int PACK_BYTES = 16;
    private static final int FIRST_CAPABILITY = 8; // with bfloat16, as a major number
    private static final int HOPPER = 9; // a major number, the first with clusters
    private static final double LOG2_E = 1 / Math.log(2);
    static final Map<ScalarType, String> TYPES =
            Map.of(ScalarType.FLOAT16, "Float16", ScalarType.BFLOAT16, "Bfloat16");

    private final CudaDevice device;
    private final int multiprocessors;
    private final int maxSharedBytes; // of a thread block
    private final Model model;
    private final CudaModule chainModule; // null if the GPU is not of Hopper
    private final CudaModule wideModule; // null with weights of 4 bits, or if not of Hopper
    private final LaunchSize sampleSize; // of a row
    private final List<CudaModule> modules = new ArrayList<>();
    private final CudaKernel embed;
    private final List<Matmul> matmuls = new ArrayList<>();
    private final CudaKernel attention;
    private final CudaKernel attentionLate;
    private final CudaKernel attentionCached;
    private final List<Spans> spans; // fewer warps first
    private final CudaKernel rotateAndCache;
    private final CudaKernel top;
    private final CudaKernel sample;
    private final CudaKernel prefillRotateAndCache;
    private final CudaKernel gather;
    private final CudaKernel activate;
    private final CudaKernel normHeads;
    private final KernelArguments arguments = new KernelArguments();

    /**
     * The properties of a model for which the kernels are compiled.
     *
     * @param type float16 or bfloat16
     * @param weights the weights of matmuls; if they are of files, some matmuls may have 16 bits
     * @param rows the largest number of rows of {@link #matmul} at a time: 8, 16, 32 or 64, up to
     *     {@value #MATMUL_ROWS} with weights of 16 bits and {@value #QUANTIZED_ROWS} with others
     * @param groupSize the query heads that share a key and value head
     * @param cacheBits the bits of the elements of the KV cache: 16 for those of {@code type}, or 8
     *     for e4m3 with scales
     */
    record Model(
            ScalarType type,
            WeightFormat weights,
            int rows,
            int headSize,
            int groupSize,
            int blockTokens,
            int cacheBits) {

        /** Returns the formats of weights that {@link #matmul} multiplies by. */
        private List<WeightFormat> formats() {
            return weights.isOfFiles()
                    ? List.of(weights, new WeightFormat(Quantization.NONE))
                    : List.of(weights);
        }
    }

    /** Kernels that are compiled together. */
    private record Part(KernelSource source, String... options) {}

    DecoderKernels(CudaDevice device, KernelCompiler compiler, Model model) {
        this.model = model;
        this.device = device;
        multiprocessors = device.attribute(CudaAttribute.MULTIPROCESSOR_COUNT);
        maxSharedBytes = maxSharedBytes(device);
        boolean clusters = device.attribute(CudaAttribute.COMPUTE_CAPABILITY_MAJOR) >= HOPPER;
        sampleSize =
                clusters
                        ? LaunchSize.of(SAMPLE_CLUSTER, CLUSTER_THREADS)
                        : LaunchSize.of(1, SAMPLE_THREADS);
        prepare(device, compiler, model); // compiles all parts at the same time
        try {
            List<Part> parts = parts(device, model);
            for (Part part : parts) {
                modules.add(compiler.load(device, part.source, part.options));
            }
            chainModule = module(parts, MatmulChain.SOURCE);
            wideModule = module(parts, WideMatmul.SOURCE);
            CudaModule module = modules.get(0);
            embed = module.kernel("decode_embed");
            attention = module.kernel("decode_attention");
            attentionLate =
                    model.cacheBits == 8 ? attention : module.kernel("decode_attention_late");
            attentionCached = module.kernel("decode_attention_cached");
            spans =
                    ATTENTION.calls("SPANS").stream()
                            .filter(call -> call[0] == model.cacheBits)
                            .map(call -> new Spans(module, call))
                            .toList();
            rotateAndCache = module.kernel("decode_rotate_and_cache");
            prefillRotateAndCache = module.kernel("prefill_rotate_and_cache");
            gather = module.kernel("prefill_gather");
            activate = module.kernel("prefill_activate");
            normHeads = module.kernel("norm_heads");
            top = modules.get(1).kernel("decode_top");
            sample = modules.get(1).kernel("decode_sample");
            int first = 2;
            for (WeightFormat format : model.formats()) {
                for (int[] matmul : MATMULS) {
                    int part = Integer.numberOfTrailingZeros(matmul[0] / PACK);
                    if (matmul[0] <= model.rows) {
                        addMatmul(modules.get(first + part), format.bits(), matmul);
                    }
                }
                first += 1 + Integer.numberOfTrailingZeros(model.rows / PACK);
            }
        } catch (Throwable e) {
            close();
            throw e;
        }
    }

    /** Starts compiling the kernels on other threads. The constructor reports a failure. */
    static CompletableFuture<Void> prepare(
            CudaDevice device, KernelCompiler compiler, Model model) {
        return CompletableFuture.allOf(
                parts(device, model).stream()
                        .map(part -> compiler.prepare(device, part.source, part.options))
                        .toArray(CompletableFuture[]::new));
    }

    private CudaModule module(List<Part> parts, KernelSource source) {
        for (int i = 0; i < parts.size(); i++) {
            if (parts.get(i).source == source) {
                return modules.get(i);
            }
        }
        return null;
    }

    /**
     * Returns the parts in the order of {@code modules}: embedding, attention and prefill kernels;
     * sampling; for each format of weights matmuls of up to 8 rows, 16 rows and so on; on Hopper
     * GPUs the chain of matmuls; there, the wide matmul if weights do not have 4 bits.
     */
    private static List<Part> parts(CudaDevice device, Model model) {
        String type = "-DTYPE=" + TYPES.get(model.type);
        List<Part> parts = new ArrayList<>();
        parts.add(
                new Part(
                        SOURCE,
                        type,
                        "-DHEAD_SIZE=" + model.headSize,
                        "-DGROUP_SIZE=" + model.groupSize,
                        "-DBLOCK_TOKENS=" + model.blockTokens,
                        "-DCACHE_BITS=" + model.cacheBits));
        parts.add(new Part(SAMPLING_SOURCE, type));
        for (WeightFormat format : model.formats()) {
            for (int rows = PACK; rows <= model.rows; rows *= 2) {
                parts.add(
                        new Part(
                                MATMUL_SOURCE,
                                type,
                                "-DROWS=" + rows,
                                format.options()[0],
                                format.options()[1],
                                "-DSHARED_BYTES=" + maxSharedBytes(device)));
            }
        }
        if (isHopper(device)) {
            String[] weights = model.weights.options();
            parts.add(
                    new Part(
                            MatmulChain.SOURCE,
                            type,
                            weights[0],
                            weights[1],
                            MatmulChain.REGISTERS));
        }
        if (isHopper(device) && model.weights.bits() != 4) {
            parts.add(new Part(WideMatmul.SOURCE, type, model.weights.options()[0]));
        }
        return parts;
    }

    static boolean isHopper(CudaDevice device) {
        return device.attribute(CudaAttribute.COMPUTE_CAPABILITY_MAJOR) == HOPPER;
    }

    /**
     * Returns a chain of matmuls for one rank, valid as long as these kernels; null if the GPU is
     * not of Hopper. {@code hidden} is the depth of matmuls that normalise their rows, {@code
     * depths} of the others.
     */
    MatmulChain chain(int hidden, int... depths) {
        return chainModule == null
                ? null
                : new MatmulChain(device, chainModule, model.weights, hidden, depths);
    }

    /**
     * Returns a matmul of many rows, valid as long as these kernels and {@code manager}; null if
     * weights have 4 bits or the GPU is not of Hopper.
     */
    WideMatmul wideMatmul(NDManager manager) {
        return wideModule == null
                ? null
                : new WideMatmul(device, wideModule, model.type, model.weights.bits(), manager);
    }

    static KernelSource source(String name) {
        return KernelSource.ofResource(NativeLibrary.class, "decoder/" + name);
    }

    /** Returns the shared memory that a thread block may use. */
    static int maxSharedBytes(CudaDevice device) {
        return device.attribute(CudaAttribute.MAX_SHARED_MEMORY_PER_BLOCK);
    }

    /**
     * A variant of the matmul kernel. A thread block computes a group of tiles, or several groups.
     */
    private record Matmul(
            CudaKernel kernel,
            int bits,
            int rows,
            int tiles,
            int sharedBytes,
            boolean isForGroups) {

        long groups(long all) {
            return ceilDiv(all, tiles);
        }

        int blocks(long all, int multiprocessors) {
            long groups = groups(all);
            return Math.toIntExact(isForGroups ? Math.min(groups, multiprocessors) : groups);
        }

        long cost(long all, int multiprocessors) {
            return DecoderKernels.cost(groups(all), multiprocessors, tiles, rows * 16 / bits);
        }
    }

    /** Returns the weight tiles of a matmul with a result of {@code width} columns. */
    static long tiles(long width, boolean gated) {
        return ceilDiv(width, gated ? TILE / 2 : TILE);
    }

    /**
     * Returns the cost of a matmul: the weight rows that the busiest SM reads, and half of its rows
     * of x, which come from L2. An SM runs one thread block at a time.
     *
     * @param tiles the weight tiles of a group
     * @param xRows the bytes of a group's rows of x, divided by those of a weight row
     */
    static long cost(long groups, int multiprocessors, int tiles, int xRows) {
        return ceilDiv(groups, multiprocessors) * (TILE * tiles + xRows / 2);
    }

    private void addMatmul(CudaModule module, int bits, int[] of) {
        int rows = of[0];
        int tiles = of[1];
        boolean forGroups = rows == PACK;
        MatmulMemory memory = MatmulMemory.of(rows, tiles, of[2], bits, forGroups, maxSharedBytes);
        if (memory.isEnough()) {
            CudaKernel kernel = module.kernel("decode_matmul_" + rows + "_" + tiles);
            kernel.allowSharedMemory(maxSharedBytes);
            matmuls.add(new Matmul(kernel, bits, rows, tiles, memory.bytes, forGroups));
        }
    }

    /** The shared memory of a kernel of matmul.cuh. */
    record MatmulMemory(int stages, int bytes) {

        /**
         * As {@code stages} of matmul.cuh computes it.
         *
         * @param bits of weights
         * @param separateSums whether a thread block computes several groups of tiles
         * @param maxBytes of a thread block
         */
        static MatmulMemory of(
                int rows, int tiles, int maxStages, int bits, boolean separateSums, int maxBytes) {
            int pack = MATMUL_THREADS * PACK_BYTES; // of all threads
            int xTiles = rows / PACK;
            int sums = separateSums ? tiles * xTiles : 0;
            int scales = bits == 4 ? (tiles + 1) / 2 : 0;
            int stage = 2 * tiles + xTiles * 16 / bits + scales;
            int stages = Math.min(maxStages, (maxBytes / pack - sums) / stage);
            return new MatmulMemory(stages, (stages * stage + sums) * pack);
        }

        boolean isEnough() {
            return stages >= MIN_STAGES;
        }
    }

    static long ceilDiv(long a, long b) {
        return (a + b - 1) / b;
    }

    /** {@code depths} are the inner dimensions of the matmuls. */
    static boolean isSupported(CudaDevice device, Model model, IntStream depths) {
        int multiple = model.weights.bits() == 8 ? PACK_BYTES : PACK;
        return depths.allMatch(depth -> depth % multiple == 0)
                && TYPES.containsKey(model.type)
                && model.headSize % (2 * PACK) == 0
                && model.headSize <= MAX_HEAD
                && model.groupSize <= MAX_GROUP_SIZE
                && device.attribute(CudaAttribute.COMPUTE_CAPABILITY_MAJOR) >= FIRST_CAPABILITY
                && NativeLibrary.NVRTC.isAvailable();
    }

    /** Launches a kernel; {@code members} puts all members of the struct that it takes. */
    private void launch(
            CudaKernel kernel,
            Layout struct,
            CudaStream stream,
            LaunchSize size,
            Consumer<KernelArguments> members) {
        kernel.launch(stream, size, arguments(struct, members));
    }

    private KernelArguments arguments(Layout struct, Consumer<KernelArguments> members) {
        members.accept(arguments.clear().addStruct(struct));
        return arguments;
    }

    /** Looks up this rank's part of the embedding: the struct {@code Embedding}. */
    void embed(CudaStream stream, int rows, Consumer<KernelArguments> members) {
        launch(embed, EMBEDDING, stream, LaunchSize.of(rows, EMBED_THREADS), members);
    }

    /**
     * What a matmul of 16-bit weights adds to its sums before it rounds them, by address: the
     * struct {@code Addend}.
     *
     * @param elements in float32, of shape (rows, rows of the weight), which the kernel before the
     *     matmul writes
     * @param adapted an int for each row: 0 if nothing is added to it, otherwise 1
     * @param xReady an int that is 1 as soon as the matmul may read x
     */
    record Addend(long elements, long adapted, long xReady) {

        static final Addend NONE = new Addend(0, 0, 0);

        /** Puts the member {@code addend} of a struct by {@code put}. */
        void putTo(ObjLongConsumer<String> put) {
            put.accept("addend.elements", elements);
            put.accept("addend.adapted", adapted);
            put.accept("addend.x_ready", xReady);
        }

        /** Returns the addend without its first rows. */
        Addend from(int row, long outputs) {
            return elements == 0
                    ? NONE
                    : new Addend(
                            elements + row * outputs * Float.BYTES,
                            adapted + (long) row * Integer.BYTES,
                            xReady);
        }
    }

    /**
     * Computes a matmul, without its norm. Every {@link Model#rows} rows read the weights once;
     * {@code x} has shape (rows, depth).
     */
    void matmul(CudaStream stream, int rows, MatmulChain.Link of, Addend addend) {
        long width = of.width();
        long depth = of.weight().depth();
        long tiles = tiles(width, of.gated());
        for (int row = 0; row < rows; row += model.rows) {
            int count = Math.min(model.rows, rows - row);
            int maxRows = Math.max(PACK, Integer.highestOneBit(2 * count - 1));
            Matmul matmul =
                    matmuls.stream()
                            .filter(m -> m.rows == maxRows && m.bits == of.weight().bits())
                            .min(Comparator.comparingLong(m -> m.cost(tiles, multiprocessors)))
                            .orElseThrow();
            arguments
                    .clear()
                    .addStruct(MATMUL)
                    .put("output", of.output() + row * of.stride() * Short.BYTES)
                    .put("x", of.x() + row * depth * Short.BYTES)
                    .put("weight", of.weight().elements())
                    .put("scales", of.weight().scales())
                    .put("bias", of.bias())
                    .put("batch", count)
                    .put("width", width)
                    .put("depth", depth)
                    .put("stride", of.stride())
                    .put("gated", of.gated() ? 1 : 0);
            addend.from(row, of.weight().rows()).putTo(arguments::put);
            LaunchSize size =
                    LaunchSize.of(matmul.blocks(tiles, multiprocessors), MATMUL_THREADS)
                            .withShared(matmul.sharedBytes);
            matmul.kernel.launch(stream, size.asDependent(), arguments);
        }
    }

    /** The KV cache of a layer, by address: the struct {@code Cache}. */
    record Cache(long keys, long values, long keyScales, long valueScales) {

        /** Puts the member {@code cache} of a struct. */
        void putTo(KernelArguments struct) {
            struct.put("cache.keys", keys)
                    .put("cache.values", values)
                    .put("cache.key_scales", keyScales)
                    .put("cache.value_scales", valueScales);
        }
    }

    /**
     * The size of an attention, and what its kernels depend on.
     *
     * @param heads the heads of keys
     * @param chunks the chunks of the longest sequence
     * @param sharesSequences whether several rows may belong to one sequence. All keys are then
     *     written before attention starts. With {@code keepsOrder} the bits are the same
     * @param keepsOrder whether the bits of a row must not depend on the other rows. If false, and
     *     each row is of another sequence, attention of many rows is faster
     * @param besideChain whether a {@link MatmulChain} runs before and after, so that attention
     *     shares SMs with the next one
     */
    record AttentionSize(
            int rows,
            int heads,
            int chunks,
            boolean sharesSequences,
            boolean keepsOrder,
            boolean besideChain) {}

    /** A kernel of attention by spans: its warps, and how many of its blocks an SM holds. */
    private record Spans(CudaKernel kernel, int warps, int blocksOfSm) {

        Spans(CudaModule module, int[] call) {
            this(module.kernel("decode_spans_" + call[1]), call[1], call[2]);
        }
    }

    /**
     * Writes the keys and values of new tokens, one for each row, to the KV cache, and computes the
     * attention of their queries: the struct {@code Attention}. The kernel reads positions and
     * table while the previous matmul still runs, so write them before a kernel or copy that ends
     * before that matmul starts. With 8 bits, attention uses the new keys and values as the cache
     * stores them, too.
     */
    void attend(CudaStream stream, AttentionSize of, Consumer<KernelArguments> members) {
        int rows = of.rows;
        int heads = of.heads;
        arguments(ATTENTION_ARRAYS, members);
        if (of.sharesSequences) {
            rotateAndCache.launch(
                    stream, LaunchSize.of(rows, PREFILL_THREADS).asDependent(), arguments);
        }
        arguments.add((float) (LOG2_E / Math.sqrt(model.headSize)));
        // As few spans of a sequence as still give each SM about two thread blocks. Instead of
        // several short spans, chunks, which 8 warps compute at the same time.
        long count = Math.max(1, 2L * multiprocessors / ((long) rows * heads));
        boolean usesChunks = count > 1 && of.chunks <= MAX_SPAN;
        if (!of.sharesSequences && !of.keepsOrder && !usesChunks) {
            long span = Math.min(ceilDiv(of.chunks, count), MAX_SPAN);
            int parts = (int) ceilDiv(of.chunks, span);
            Spans kernel = spans((long) rows * heads * parts);
            kernel.kernel.launch(
                    stream,
                    LaunchSize.of(heads, kernel.warps * WARP).withGrid(rows, parts).asDependent(),
                    arguments.add((int) span * CHUNK));
            return;
        }
        // An SM holds two thread blocks of `attention`, four of `attentionLate`, or one of
        // `attentionLate` beside one of a chain.
        long blocks = (long) rows * heads * of.chunks;
        boolean late = blocks > 2L * multiprocessors || of.besideChain && blocks <= multiprocessors;
        CudaKernel kernel = of.sharesSequences ? attentionCached : late ? attentionLate : attention;
        LaunchSize size = LaunchSize.of(heads, ATTENTION_THREADS).withGrid(rows, of.chunks);
        kernel.launch(stream, size.asDependent(), arguments);
    }

    /**
     * Returns the kernel whose thread blocks end first. They need waves: in one, as many run as the
     * SMs hold. A wave takes less time with more warps in a block. For more than two waves, few
     * warps were as fast or faster.
     */
    private Spans spans(long blocks) {
        Spans few = spans.get(0);
        Spans many = spans.get(1);
        long waves = ceilDiv(blocks, (long) many.blocksOfSm * multiprocessors);
        boolean fewInOneWave = blocks <= (long) few.blocksOfSm * multiprocessors;
        return waves == 1 || waves == 2 && !fewInOneWave ? many : few;
    }

    /**
     * Finds for each row: the highest logit, the sum of the exponentials relative to the highest
     * logit, and the first token with that logit: the struct {@code Logits}, of at most 32 ranks.
     */
    void top(CudaStream stream, int rows, Consumer<KernelArguments> members) {
        LaunchSize size = LaunchSize.of(TOP_BLOCKS, TOP_THREADS).withGrid(rows, 1);
        launch(top, LOGITS, stream, size, members);
    }

    /**
     * Samples a token for each row, or takes the argmax, and keeps it for the next {@link #embed}:
     * the struct {@code Sampling}.
     */
    void sample(CudaStream stream, int rows, Consumer<KernelArguments> members) {
        launch(sample, SAMPLING_ARRAYS, stream, sampleSize.withGrid(rows, 1), members);
    }

    /**
     * Applies the rotary embedding to queries and keys of prompts' tokens, in place, and writes
     * keys and values to the KV cache: the struct {@code Rotation}.
     */
    void rotateAndCache(CudaStream stream, int rows, Consumer<KernelArguments> members) {
        LaunchSize size = LaunchSize.of(rows, PREFILL_THREADS);
        launch(prefillRotateAndCache, ROTATION, stream, size, members);
    }

    /** Copies keys and values from the KV cache: the struct {@code Gathering}. */
    void gather(CudaStream stream, int rows, Consumer<KernelArguments> members) {
        launch(gather, GATHERING, stream, LaunchSize.of(rows, PREFILL_THREADS), members);
    }

    /** Normalises each head of queries and keys, in place: the struct {@code HeadNorms}. */
    void normHeads(CudaStream stream, int rows, Consumer<KernelArguments> members) {
        LaunchSize size = LaunchSize.of(rows, PREFILL_THREADS).asDependent();
        launch(normHeads, HEAD_NORMS, stream, size, members);
    }

    /**
     * Computes {@code silu(gates) * values}, of shape (rows, width), of the gates and then the
     * values of each row, of shape (rows, 2 width).
     */
    void activate(CudaStream stream, long output, long both, long rows, long width) {
        long packs = Math.max(1, rows * width / PACK);
        long blocks =
                Math.min(8L * multiprocessors, (packs + PREFILL_THREADS - 1) / PREFILL_THREADS);
        launch(
                activate,
                ACTIVATION,
                stream,
                LaunchSize.of((int) blocks, PREFILL_THREADS),
                to ->
                        to.put("output", output)
                                .put("both", both)
                                .put("rows", rows)
                                .put("width", width));
    }

    @Override
    public void close() {
        modules.forEach(CudaModule::close);
    }
}
