// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
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
 * WideMatmul}. Arrays are given by address; the files describe their layouts. Matmuls and attention
 * use programmatic dependent launch: they may start while the previous kernel still runs. Not
 * thread-safe.
 */
public final class DecoderKernels implements AutoCloseable {

    /** The largest number of rows of a step, which are the sequences of a batch. */
    public static final int MAX_ROWS = 256;

    /** The largest number of rows of {@link #matmul} at a time, for weights of 16 bits. */
    public static final int MATMUL_ROWS = 64;

    /** The largest number of rows of {@link #matmul} at a time, for weights of 8 or 4 bits. */
    public static final int QUANTIZED_ROWS = 32;

    /** The tokens of a sequence that one thread block of the attention reads. */
    public static final int CHUNK = 128;

    /** The floats that a chunk writes in addition to the elements of a head. */
    public static final int CHUNK_EXTRA = 2;

    /** The floats that {@link #top} and {@link #sample} write for each row. */
    public static final int TOP_FLOATS = 4;

    /** The bytes of the sampling parameters of a row for {@link #sample}, a multiple of 8. */
    public static final int SAMPLING_BYTES = 80;

    /** The most logits that {@link #sample} lists for a row. */
    public static final int MAX_TOP_LOGPROBS = 20;

    /** The bytes of a listed logit: its token as an int, and a float. */
    public static final int MOST_BYTES = 8;

    /** Stands for the token that {@link #sample} returned last for the sequence. */
    public static final int LAST_SAMPLED = -2;

    /** The largest vocabulary: token ids are stored as floats. */
    public static final int MAX_TOKENS = 1 << 24;

    /** The thread blocks that search the logits of a row. Each writes its own result. */
    public static final int TOP_BLOCKS = 16;

    private static final KernelSource SOURCE = source("decoder.cu");
    private static final KernelSource MATMUL_SOURCE = source("matmul.cu");
    private static final KernelSource SAMPLING_SOURCE = source("sampling.cu");
    private static final KernelConstants CONSTANTS = new KernelConstants(MATMUL_SOURCE);
    private static final KernelConstants SAMPLING = new KernelConstants(SAMPLING_SOURCE);
    private static final int WARP = CONSTANTS.value("WARP");
    private static final int TOP_THREADS = SAMPLING.value("TOP_THREADS");
    private static final int SAMPLE_THREADS = SAMPLING.value("SAMPLE_THREADS");
    private static final int SAMPLE_CLUSTER = SAMPLING.value("SAMPLE_CLUSTER");
    private static final int CLUSTER_THREADS = SAMPLING.value("CLUSTER_THREADS");
    private static final int EMBED_THREADS = 256;
    private static final int MATMUL_THREADS = CONSTANTS.value("MATMUL_WARPS") * WARP;
    private static final int PREFILL_THREADS = 256;
    private static final KernelConstants ATTENTION = new KernelConstants(SOURCE);
    private static final int ATTENTION_THREADS = ATTENTION.value("ATTENTION_WARPS") * WARP;
    private static final int SPAN_THREADS = ATTENTION.value("SPAN_WARPS") * WARP;
    private static final Layout EMBEDDING = ATTENTION.struct("Embedding");
    private static final Layout MATMUL = CONSTANTS.struct("Matmul");
    private static final Layout ATTENTION_ARRAYS = ATTENTION.struct("Attention");
    private static final Layout LOGITS = SAMPLING.struct("Logits");
    private static final Layout SAMPLING_ARRAYS = SAMPLING.struct("Sampling");
    private static final Layout ROTATION = ATTENTION.struct("Rotation");
    private static final Layout GATHERING = ATTENTION.struct("Gathering");
    private static final Layout HEAD_NORMS = ATTENTION.struct("HeadNorms");
    private static final Layout ACTIVATION = ATTENTION.struct("Activation");
    private static final int MAX_SPAN = 16 * CHUNK; // a block of a longer one would end last
    private static final int TILE = 16; // rows of weights of one tensor core instruction
    private static final int MIN_STAGES = 2;

    /**
     * The variants of the matmul kernel: largest number of rows, weight tiles of a group, largest
     * number of stages.
     */
    private static final List<int[]> MATMULS = CONSTANTS.calls("MATMUL");

    private static final int MAX_HEAD = 128;
    private static final int MAX_GROUP_SIZE = 8;
    private static final int PACK = 8; // elements of 16 bytes
    private static final int PACK_BYTES = 16;
    private static final int FIRST_CAPABILITY = 8; // with bfloat16, as a major number
    private static final int HOPPER = 9; // a major number, the first with clusters
    private static final double LOG2_E = 1 / Math.log(2);
    private static final Map<ScalarType, String> TYPES =
            Map.of(ScalarType.FLOAT16, "Float16", ScalarType.BFLOAT16, "Bfloat16");

    private final CudaDevice device;
    private final int multiprocessors;
    private final int maxSharedBytes; // of a thread block
    private final Model model;
    private final CudaModule chainModule; // null if the GPU is not of Hopper
    private final WideMatmul wideMatmul; // null with weights of 4 bits, or if not of Hopper
    private final LaunchSize sampleSize; // of a row
    private final List<CudaModule> modules = new ArrayList<>();
    private final CudaKernel embed;
    private final List<Matmul> matmuls = new ArrayList<>();
    private final CudaKernel attention;
    private final CudaKernel attentionLate;
    private final CudaKernel attentionCached;
    private final CudaKernel attentionMany;
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
     * @param weightBits the bits of the weights of matmuls: 16, or 8 or 4 in the layout of {@link
     *     QuantizeKernels}
     * @param rows the largest number of rows of {@link #matmul} at a time: 8, 16, 32 or 64, up to
     *     {@value #MATMUL_ROWS} with weights of 16 bits and {@value #QUANTIZED_ROWS} with others
     * @param groupSize the query heads that share a key and value head
     * @param cacheBits the bits of the elements of the KV cache: 16 for those of {@code type}, or 8
     *     for e4m3 with scales
     */
    public record Model(
            ScalarType type,
            int weightBits,
            int rows,
            int headSize,
            int groupSize,
            int blockTokens,
            int cacheBits) {

        /** Returns the size of a row of x divided by the size of a row of weights. */
        private int xPacks() {
            return 16 / weightBits;
        }
    }

    /** Kernels that are compiled together. */
    private record Part(KernelSource source, String... options) {}

    public DecoderKernels(CudaDevice device, KernelCompiler compiler, Model model) {
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
            CudaModule wide = module(parts, WideMatmul.SOURCE);
            wideMatmul =
                    wide == null
                            ? null
                            : new WideMatmul(device, wide, model.type, model.weightBits);
            CudaModule module = modules.get(0);
            embed = module.kernel("decode_embed");
            attention = module.kernel("decode_attention");
            attentionLate =
                    model.cacheBits == 8 ? attention : module.kernel("decode_attention_late");
            attentionCached = module.kernel("decode_attention_cached");
            attentionMany = module.kernel("decode_attention_many");
            rotateAndCache = module.kernel("decode_rotate_and_cache");
            prefillRotateAndCache = module.kernel("prefill_rotate_and_cache");
            gather = module.kernel("prefill_gather");
            activate = module.kernel("prefill_activate");
            normHeads = module.kernel("norm_heads");
            top = modules.get(1).kernel("decode_top");
            sample = modules.get(1).kernel("decode_sample");
            for (int[] matmul : MATMULS) {
                if (matmul[0] <= model.rows) {
                    int part = 2 + Integer.numberOfTrailingZeros(matmul[0] / PACK);
                    addMatmul(modules.get(part), matmul[0], matmul[1], matmul[2]);
                }
            }
        } catch (Throwable e) {
            close();
            throw e;
        }
    }

    /** Starts compiling the kernels on other threads. The constructor reports a failure. */
    public static CompletableFuture<Void> prepare(
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
     * sampling; matmuls of up to 8 rows, 16 rows and so on; on Hopper GPUs the chain of matmuls;
     * there, the wide matmul if weights do not have 4 bits.
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
        for (int rows = PACK; rows <= model.rows; rows *= 2) {
            parts.add(
                    new Part(
                            MATMUL_SOURCE,
                            type,
                            "-DROWS=" + rows,
                            "-DWEIGHT_BITS=" + model.weightBits,
                            "-DSHARED_BYTES=" + maxSharedBytes(device)));
        }
        if (isHopper(device)) {
            String bits = "-DWEIGHT_BITS=" + model.weightBits;
            parts.add(new Part(MatmulChain.SOURCE, type, bits, MatmulChain.REGISTERS));
        }
        if (isHopper(device) && model.weightBits != 4) {
            String bits = "-DWEIGHT_BITS=" + model.weightBits;
            parts.add(new Part(WideMatmul.SOURCE, type, bits));
        }
        return parts;
    }

    private static boolean isHopper(CudaDevice device) {
        return device.attribute(CudaAttribute.COMPUTE_CAPABILITY_MAJOR) == HOPPER;
    }

    /**
     * Returns a chain of matmuls for one rank, valid as long as these kernels; null if the GPU is
     * not of Hopper. {@code hidden} is the depth of matmuls that normalise their rows, {@code
     * depths} of the others.
     */
    public MatmulChain chain(int hidden, int... depths) {
        return chainModule == null
                ? null
                : new MatmulChain(device, chainModule, model.weightBits, hidden, depths);
    }

    /**
     * Returns the matmul of many rows, valid as long as these kernels; null if weights have 4 bits
     * or the GPU is not of Hopper.
     */
    public WideMatmul wideMatmul() {
        return wideMatmul;
    }

    private static KernelSource source(String name) {
        return KernelSource.ofResource(NativeLibrary.class, "decoder/" + name);
    }

    private static int maxSharedBytes(CudaDevice device) {
        return device.attribute(CudaAttribute.MAX_SHARED_MEMORY_PER_BLOCK);
    }

    /**
     * A variant of the matmul kernel. A thread block computes a group of tiles, or several groups.
     */
    private record Matmul(
            CudaKernel kernel, int rows, int tiles, int sharedBytes, boolean isForGroups) {

        long groups(long all) {
            return ceilDiv(all, tiles);
        }

        int blocks(long all, int multiprocessors) {
            long groups = groups(all);
            return Math.toIntExact(isForGroups ? Math.min(groups, multiprocessors) : groups);
        }
    }

    /**
     * Returns the cost in rows of weights that an SM reads: the weights, and for each group of
     * tiles the rows of x. The rows of x come from L2 and count half. An SM runs one thread block
     * at a time.
     */
    private long cost(Matmul matmul, long tiles) {
        return ceilDiv(matmul.groups(tiles), multiprocessors)
                * (TILE * matmul.tiles + matmul.rows * model.xPacks() / 2);
    }

    private void addMatmul(CudaModule module, int rows, int tiles, int maxStages) {
        int pack = MATMUL_THREADS * PACK_BYTES; // of all threads
        int xTiles = rows / PACK;
        boolean forGroups = xTiles == 1;
        int sums = forGroups ? tiles : 0;
        int scales = model.weightBits == 4 ? (tiles + 1) / 2 : 0;
        int stage = 2 * tiles + xTiles * model.xPacks() + scales;
        int stages = Math.min(maxStages, (maxSharedBytes / pack - sums) / stage);
        if (stages >= MIN_STAGES) {
            CudaKernel kernel = module.kernel("decode_matmul_" + rows + "_" + tiles);
            kernel.allowSharedMemory(maxSharedBytes);
            int sharedBytes = (stages * stage + sums) * pack;
            matmuls.add(new Matmul(kernel, rows, tiles, sharedBytes, forGroups));
        }
    }

    private static long ceilDiv(long a, long b) {
        return (a + b - 1) / b;
    }

    /** {@code depths} are the inner dimensions of the matmuls. */
    public static boolean isSupported(CudaDevice device, Model model, int... depths) {
        boolean packs = true;
        for (int depth : depths) {
            packs &= depth % (model.weightBits == 8 ? PACK_BYTES : PACK) == 0;
        }
        return packs
                && TYPES.containsKey(model.type)
                && model.headSize % (2 * PACK) == 0
                && model.headSize <= MAX_HEAD
                && model.groupSize <= MAX_GROUP_SIZE
                && device.attribute(CudaAttribute.COMPUTE_CAPABILITY_MAJOR) >= FIRST_CAPABILITY
                && NativeLibrary.NVRTC.isAvailable();
    }

    /**
     * Looks up this rank's part of the embedding, {@code count} tokens from {@code first} on.
     *
     * @param tokens an int for each row: the token, -1 for none, or {@value #LAST_SAMPLED} for the
     *     last sampled token
     * @param slots an int for each row: the index of its sequence in {@code sampled}
     * @param sampled the tokens of {@link #sample}
     */
    public void embed(
            CudaStream stream,
            int rows,
            long output,
            long tokens,
            long slots,
            long sampled,
            long embedding,
            long first,
            long count,
            long hidden) {
        arguments
                .clear()
                .addStruct(EMBEDDING)
                .put("output", output)
                .put("tokens", tokens)
                .put("slots", slots)
                .put("sampled", sampled)
                .put("embedding", embedding)
                .put("first", first)
                .put("count", count)
                .put("hidden", hidden);
        embed.launch(stream, LaunchSize.of(rows, EMBED_THREADS), arguments);
    }

    /**
     * Computes {@code output = x weightᵀ + bias}, or {@code silu(x gatesᵀ) * (x valuesᵀ)} with
     * biases of both. Every {@link Model#rows} rows read the weights once. {@code output} has rows
     * of {@code width}, {@code stride} elements apart; {@code x} has shape (rows, depth).
     *
     * @param gated whether the weight holds the rows of the gates, then the rows of the values
     * @param weight the weight, of shape (width, depth), or (2 width, depth) if gated
     * @param scales the scales of quantized weights; not read with 16 bits
     * @param bias the bias, of shape (width), or (2 width) if gated; 0 for none
     */
    public void matmul(
            CudaStream stream,
            boolean gated,
            int rows,
            long output,
            long x,
            long weight,
            long scales,
            long bias,
            long width,
            long depth,
            long stride) {
        long tiles = ceilDiv(width, gated ? TILE / 2 : TILE);
        for (int row = 0; row < rows; row += model.rows) {
            int count = Math.min(model.rows, rows - row);
            int maxRows = Math.max(PACK, Integer.highestOneBit(2 * count - 1));
            Matmul matmul =
                    matmuls.stream()
                            .filter(m -> m.rows == maxRows)
                            .min(Comparator.comparingLong(m -> cost(m, tiles)))
                            .orElseThrow();
            arguments
                    .clear()
                    .addStruct(MATMUL)
                    .put("output", output + row * stride * Short.BYTES)
                    .put("x", x + row * depth * Short.BYTES)
                    .put("weight", weight)
                    .put("scales", scales)
                    .put("bias", bias)
                    .put("batch", count)
                    .put("width", width)
                    .put("depth", depth)
                    .put("stride", stride)
                    .put("gated", gated ? 1 : 0);
            LaunchSize size =
                    LaunchSize.of(matmul.blocks(tiles, multiprocessors), MATMUL_THREADS)
                            .withShared(matmul.sharedBytes);
            matmul.kernel.launch(stream, size.asDependent(), arguments);
        }
    }

    /**
     * The KV cache of a layer, by address. A head in e4m3 has a scale in float32: the head's
     * largest magnitude divided by 448; NaN or infinite if an element is.
     *
     * @param keys the keys, as the values, of shape (slots, heads of keys, head size)
     * @param keyScales the scales of keys, as those of values, of shape (blocks, heads of keys,
     *     tokens of a block); not used with 16 bits
     */
    public record Cache(long keys, long values, long keyScales, long valueScales) {}

    /**
     * The arrays of attention, by address: {@code output} of shape (rows, heads of queries, head
     * size), {@code qkv} of shape (rows, heads of all three, head size). With 8 bits, attention
     * uses the new keys and values as the cache stores them, too.
     *
     * @param positions an int for each row: the position of the new token, or -1 for none. The
     *     kernel reads positions and table while the previous matmul still runs, so write them
     *     before a kernel or copy that ends before that matmul starts
     * @param table the block table: for each row, the first cache row of each block, as ints
     * @param cosines the cosines, as the sines, of shape (positions, half of the head size), in
     *     float32
     * @param firstChunks an int for each row: the number of chunks of all previous rows
     * @param chunks temporary memory for (chunks of all rows, heads of keys, group size, head size
     *     + {@value #CHUNK_EXTRA}) floats
     * @param chunksEnded (rows, heads of keys) ints, initially 0
     * @param window the tokens that a token attends to, itself included; 0 for all
     */
    public record Attention(
            long output,
            long qkv,
            Cache cache,
            long positions,
            long table,
            long cosines,
            long sines,
            long firstChunks,
            long chunks,
            long chunksEnded,
            int window) {}

    /**
     * Writes the keys and values of new tokens, one for each row, to the KV cache, and computes the
     * attention of their queries.
     *
     * @param sharesSequences whether several rows may belong to one sequence. All keys are then
     *     written before attention starts. With {@code keepsOrder} the bits are the same
     * @param keepsOrder whether the bits of a row must not depend on the other rows. If false, and
     *     each row is of another sequence, attention of many rows is faster
     * @param besideChain whether a {@link MatmulChain} runs before and after, so that attention
     *     shares SMs with the next one
     */
    public void attend(
            CudaStream stream,
            Attention of,
            boolean sharesSequences,
            boolean keepsOrder,
            boolean besideChain,
            int rows,
            int heads,
            int chunks,
            long tableStride) {
        arguments
                .clear()
                .addStruct(ATTENTION_ARRAYS)
                .put("output", of.output)
                .put("qkv", of.qkv)
                .put("cache.keys", of.cache.keys)
                .put("cache.values", of.cache.values)
                .put("cache.key_scales", of.cache.keyScales)
                .put("cache.value_scales", of.cache.valueScales)
                .put("positions", of.positions)
                .put("table", of.table)
                .put("cosines", of.cosines)
                .put("sines", of.sines)
                .put("first_chunks", of.firstChunks)
                .put("chunks", of.chunks)
                .put("chunks_ended", of.chunksEnded)
                .put("window", of.window == 0 ? Integer.MAX_VALUE : of.window)
                .put("table_stride", tableStride)
                .put("heads", heads);
        if (sharesSequences) {
            rotateAndCache.launch(
                    stream, LaunchSize.of(rows, PREFILL_THREADS).asDependent(), arguments);
        }
        arguments.add((float) (LOG2_E / Math.sqrt(model.headSize)));
        if (!sharesSequences && !keepsOrder) {
            // As few spans as give about two thread blocks for each SM.
            long parts = ceilDiv(2L * multiprocessors, (long) rows * heads);
            long span = CHUNK * Math.min(ceilDiv(chunks, parts), MAX_SPAN / CHUNK);
            int spans = (int) ceilDiv((long) chunks * CHUNK, span);
            LaunchSize size = LaunchSize.of(heads, SPAN_THREADS).withGrid(rows, spans);
            attentionMany.launch(stream, size.asDependent(), arguments.add((int) span));
            return;
        }
        // An SM holds two thread blocks of `attention`, four of `attentionLate`, or one of
        // `attentionLate` beside one of a chain.
        long blocks = (long) rows * heads * chunks;
        boolean late = blocks > 2L * multiprocessors || besideChain && blocks <= multiprocessors;
        CudaKernel kernel = sharesSequences ? attentionCached : late ? attentionLate : attention;
        LaunchSize size = LaunchSize.of(heads, ATTENTION_THREADS).withGrid(rows, chunks);
        kernel.launch(stream, size.asDependent(), arguments);
    }

    /**
     * Finds for each row: the highest logit, the sum of the exponentials relative to the highest
     * logit, and the first token with that logit. The last of the {@value #TOP_FLOATS} floats is
     * unused. {@code logits} are rows of {@code width}, {@code stride} elements apart, of at most
     * 32 ranks.
     *
     * @param top the output, of shape (ranks, rows, {@value #TOP_FLOATS}): zeros for other ranks
     * @param parts temporary memory for {@value #TOP_BLOCKS} such results for each row
     * @param blocksEnded an int for each row, initially 0
     */
    public void top(
            CudaStream stream,
            int rows,
            long top,
            long logits,
            long parts,
            long blocksEnded,
            long first,
            long width,
            long stride,
            int rank,
            int ranks) {
        arguments
                .clear()
                .addStruct(LOGITS)
                .put("top", top)
                .put("logits", logits)
                .put("parts", parts)
                .put("blocks_ended", blocksEnded)
                .put("first", first)
                .put("width", width)
                .put("stride", stride)
                .put("rank", rank)
                .put("ranks", ranks);
        LaunchSize size = LaunchSize.of(TOP_BLOCKS, TOP_THREADS).withGrid(rows, 1);
        this.top.launch(stream, size.asDependent(), arguments);
    }

    /**
     * The arrays of sampling, by address.
     *
     * @param top the output, {@value #TOP_FLOATS} floats for each row: the highest logit, the sum
     *     of the exponentials relative to the highest logit, the sampled token, and its logit; may
     *     be pinned memory
     * @param parts the results of {@link #top} of all ranks, of shape (ranks, rows, {@value
     *     #TOP_FLOATS})
     * @param slots an int for each row: its index in {@code sampled}; -1 for none
     * @param parameters {@value #SAMPLING_BYTES} bytes of sampling parameters for each row:
     *     <ol>
     *       <li>a double, the {@code scale}: the weight of a token is {@code 2^(scale * (logit -
     *           highest logit))}; 0 for greedy sampling
     *       <li>a double, top-p; 1 for all tokens
     *       <li>a long, the random number
     *       <li>a long, top-k; 0 for all tokens
     *       <li>a double, min-p; 0 for all tokens
     *       <li>the address of edits, in pinned memory: for each of distinct tokens an int, the
     *           token; an int, how often it was generated, plus 2^30 if the prompt has it; a float,
     *           its bias. 0 if the logits are not edited
     *       <li>the address of a bit for each token, in pinned memory: 1 if it is allowed. 0 if all
     *           are
     *       <li>an int, the number of edits
     *       <li>an int, the token to report instead of a sampled one; -1 for none
     *       <li>an int, how many of the highest logits to list
     *       <li>three floats, the repetition, frequency and presence penalties
     *     </ol>
     *
     * @param logits the logits of all ranks, used by rows that are not plainly greedy: rows of
     *     {@code width}, {@code stride} apart
     * @param tokens the tokens of {@link #embed}: edits do not count the {@link #LAST_SAMPLED} yet
     * @param most receives the listed logits of each row, {@value #MAX_TOP_LOGPROBS} times {@value
     *     #MOST_BYTES} bytes a row; may be pinned memory
     * @param edited temporary memory for {@code width} floats of each row; used by rows with edits
     */
    public record Sampling(
            long top,
            long parts,
            long sampled,
            long slots,
            long parameters,
            long logits,
            long width,
            long stride,
            long tokens,
            long most,
            long edited,
            long editedStride) {}

    /** Samples a token for each row, or takes the argmax. Keeps it for the next {@link #embed}. */
    public void sample(CudaStream stream, Sampling of, int ranks, int rows) {
        arguments
                .clear()
                .addStruct(SAMPLING_ARRAYS)
                .put("top", of.top)
                .put("parts", of.parts)
                .put("sampled", of.sampled)
                .put("slots", of.slots)
                .put("parameters", of.parameters)
                .put("logits", of.logits)
                .put("width", of.width)
                .put("stride", of.stride)
                .put("ranks", ranks)
                .put("rows", rows)
                .put("tokens", of.tokens)
                .put("most", of.most)
                .put("edited", of.edited)
                .put("edited_stride", of.editedStride);
        sample.launch(stream, sampleSize.withGrid(rows, 1), arguments);
    }

    /**
     * Applies the rotary embedding to queries and keys of prompts' tokens, in place, and writes
     * keys and values to the KV cache. {@code qkv} has shape (rows, heads of all three, head size);
     * {@code queries} is 0 if there are only keys and values. Slots and positions are an int for
     * each row; cosines and sines are float32 of shape (positions, half of the head size).
     */
    public void rotateAndCache(
            CudaStream stream,
            int rows,
            long qkv,
            Cache cache,
            long slots,
            long positions,
            long cosines,
            long sines,
            int queries,
            int heads) {
        arguments
                .clear()
                .addStruct(ROTATION)
                .put("qkv", qkv)
                .put("cache.keys", cache.keys)
                .put("cache.values", cache.values)
                .put("cache.key_scales", cache.keyScales)
                .put("cache.value_scales", cache.valueScales)
                .put("slots", slots)
                .put("positions", positions)
                .put("cosines", cosines)
                .put("sines", sines)
                .put("queries", queries)
                .put("heads", heads);
        prefillRotateAndCache.launch(stream, LaunchSize.of(rows, PREFILL_THREADS), arguments);
    }

    /**
     * Copies keys and values of the given slots, a long for each row, from the KV cache, in the
     * model's type and shape (rows, heads, head size).
     */
    public void gather(
            CudaStream stream,
            int rows,
            long keys,
            long values,
            Cache cache,
            long slots,
            int heads) {
        arguments
                .clear()
                .addStruct(GATHERING)
                .put("keys", keys)
                .put("values", values)
                .put("cache.keys", cache.keys)
                .put("cache.values", cache.values)
                .put("cache.key_scales", cache.keyScales)
                .put("cache.value_scales", cache.valueScales)
                .put("slots", slots)
                .put("heads", heads);
        gather.launch(stream, LaunchSize.of(rows, PREFILL_THREADS), arguments);
    }

    /**
     * Normalises each head of queries and keys, in place. {@code qkv} has shape (rows, heads of all
     * three, head size); {@code queries} is 0 if there are only keys and values, and {@code heads}
     * are those of keys.
     */
    public void normHeads(
            CudaStream stream,
            int rows,
            long qkv,
            long queryWeights,
            long keyWeights,
            int queries,
            int heads,
            float epsilon) {
        arguments
                .clear()
                .addStruct(HEAD_NORMS)
                .put("qkv", qkv)
                .put("query_weights", queryWeights)
                .put("key_weights", keyWeights)
                .put("queries", queries)
                .put("heads", heads)
                .put("epsilon", epsilon);
        normHeads.launch(stream, LaunchSize.of(rows, PREFILL_THREADS).asDependent(), arguments);
    }

    /**
     * Computes {@code silu(gates) * values}, of shape (rows, width), of the gates and then the
     * values of each row, of shape (rows, 2 width).
     */
    public void activate(CudaStream stream, long output, long both, long rows, long width) {
        arguments
                .clear()
                .addStruct(ACTIVATION)
                .put("output", output)
                .put("both", both)
                .put("rows", rows)
                .put("width", width);
        long packs = Math.max(1, rows * width / PACK);
        long blocks =
                Math.min(8L * multiprocessors, (packs + PREFILL_THREADS - 1) / PREFILL_THREADS);
        activate.launch(stream, LaunchSize.of((int) blocks, PREFILL_THREADS), arguments);
    }

    @Override
    public void close() {
        modules.forEach(CudaModule::close);
    }
}
