/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.internal;

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
import org.djlx.nativeops.cuda.KernelSource;
import org.djlx.nativeops.cuda.LaunchSize;
import org.djlx.nativeops.torch.ScalarType;

/**
 * The kernels of {@code llama.cu} on one GPU, for a model's element type and heads. Arrays are
 * given by address and lie as that file says; products and attention may begin while the kernel
 * before still runs. For one thread at a time.
 */
public final class LlamaKernels implements AutoCloseable {

    /** The most rows that a product takes: sequences of a batch. */
    public static final int MAX_ROWS = 64;

    /** How many tokens of a sequence a block of the attention has. */
    public static final int CHUNK = 128;

    /** The floats that a chunk leaves behind, besides the elements of a head. */
    public static final int CHUNK_EXTRA = 2;

    /** The floats that {@link #best} and {@link #choose} write for a row. */
    public static final int BEST_FLOATS = 4;

    /** The bytes of what {@link #choose} is told of a row, a multiple of 8. */
    public static final int DRAW_BYTES = 32;

    /** In place of a token: what {@link #choose} has chosen for the sequence last. */
    public static final int CHOSEN = -2;

    /** How many tokens there may be: floats hold their numbers. */
    public static final int MAX_TOKENS = 1 << 24;

    /** How many blocks, with as many such results, a row's scores have. */
    public static final int BEST_BLOCKS = 16;

    private static final int BEST_THREADS = 256;
    private static final int CHOICE_THREADS = 1024;
    private static final int EMBED_THREADS = 256;
    private static final int PRODUCT_THREADS = 256;
    private static final int PROMPT_THREADS = 256;
    private static final int ATTENTION_THREADS = 256;
    private static final int STRIPE = 16; // rows of weights that a tensor core's product has
    private static final int MIN_STAGES = 2;
    private static final int NORM_SUMS = 64; // bytes

    /** The most rows of a product, the stripes that a block has, the most stages: matmul.cuh's. */
    private static final int[][] PRODUCTS = {
        {8, 7, 3}, {8, 3, 7}, {8, 2, 10}, {8, 1, 10},
        {16, 7, 3}, {16, 3, 7}, {16, 2, 6}, {16, 1, 6},
        {32, 7, 3}, {32, 3, 5}, {32, 2, 5}, {32, 1, 5},
        {64, 4, 3}, {64, 2, 4}, {64, 1, 4},
    };

    /** The stripes that a block has, the most stages, of products that norm their row. */
    private static final int[][] NORM_PRODUCTS = {{7, 3}, {3, 8}, {2, 10}, {1, 10}};

    private static final int MAX_HEAD = 128;
    private static final int MAX_SHARING = 8;
    private static final int PACK = 8; // elements of 16 bytes
    private static final int PACK_BYTES = 16;
    private static final int FIRST_CAPABILITY = 8; // with bfloat16, as a major number
    private static final double LOG2_E = 1 / Math.log(2);
    private static final Map<ScalarType, String> TYPES =
            Map.of(ScalarType.FLOAT16, "Float16", ScalarType.BFLOAT16, "Bfloat16");

    private static final Norm NO_NORM = new Norm(0, 0, 0, 0);

    private final int multiprocessors;
    private final int room; // in bytes, of a block's shared memory
    private final int headSize;
    private final CudaModule module;
    private final CudaKernel embed;
    private final List<Product> products = new ArrayList<>();
    private final CudaKernel attention;
    private final CudaKernel attentionLate;
    private final CudaKernel attentionPlaced;
    private final CudaKernel place;
    private final CudaKernel best;
    private final CudaKernel choose;
    private final CudaKernel rotate;
    private final CudaKernel activate;
    private final KernelArguments arguments = new KernelArguments();

    /**
     * Compiles the kernels, or takes them from the cache.
     *
     * @param device the GPU
     * @param compiler compiles them
     * @param type the element type
     * @param headSize the size of a head
     * @param sharing how many heads of queries share one of keys and values
     * @param blockTokens how many tokens of a sequence lie side by side in the cache
     */
    public LlamaKernels(
            CudaDevice device,
            KernelCompiler compiler,
            ScalarType type,
            int headSize,
            int sharing,
            int blockTokens) {
        multiprocessors = device.attribute(CudaAttribute.MULTIPROCESSOR_COUNT);
        this.headSize = headSize;
        room = room(device);
        module =
                compiler.load(
                        device, source(), options(device, type, headSize, sharing, blockTokens));
        embed = module.kernel("decode_embed");
        for (int[] product : PRODUCTS) {
            addProduct(product[0], product[1], product[2], false);
        }
        for (int[] product : NORM_PRODUCTS) {
            addProduct(PACK, product[0], product[1], true);
        }
        attention = module.kernel("decode_attention");
        attentionLate = module.kernel("decode_attention_late");
        attentionPlaced = module.kernel("decode_attention_cached");
        place = module.kernel("decode_rotate_and_cache");
        best = module.kernel("decode_top");
        choose = module.kernel("decode_sample");
        rotate = module.kernel("prefill_rotate_and_cache");
        activate = module.kernel("prefill_activate");
    }

    /**
     * Begins to compile the kernels on a thread of its own.
     *
     * @param device the GPU
     * @param compiler compiles them
     * @param type the element type
     * @param headSize the size of a head
     * @param sharing how many heads of queries share one of keys and values
     * @param blockTokens how many tokens of a sequence lie side by side in the cache
     * @return done when they are compiled, or cannot be, which the constructor tells
     */
    public static CompletableFuture<Void> prepare(
            CudaDevice device,
            KernelCompiler compiler,
            ScalarType type,
            int headSize,
            int sharing,
            int blockTokens) {
        return compiler.prepare(
                device, source(), options(device, type, headSize, sharing, blockTokens));
    }

    private static KernelSource source() {
        return KernelSource.ofResource(NativeLibrary.class, "llama/llama.cu");
    }

    private static String[] options(
            CudaDevice device, ScalarType type, int headSize, int sharing, int blockTokens) {
        return new String[] {
            "-DTYPE=" + TYPES.get(type),
            "-DHEAD_SIZE=" + headSize,
            "-DGROUP_SIZE=" + sharing,
            "-DBLOCK_TOKENS=" + blockTokens,
            "-DSHARED_BYTES=" + room(device)
        };
    }

    private static int room(CudaDevice device) {
        return device.attribute(CudaAttribute.MAX_SHARED_MEMORY_PER_BLOCK);
    }

    /**
     * A kernel for products of up to so many rows, whose blocks have groups of so many stripes, one
     * or several.
     */
    private record Product(
            CudaKernel kernel,
            int rows,
            int stripes,
            int sharedBytes,
            boolean isNorming,
            boolean isForGroups) {

        long groups(long all) {
            return ceilDiv(all, stripes);
        }

        int blocks(long all, int multiprocessors) {
            long groups = groups(all);
            return Math.toIntExact(isForGroups ? Math.min(groups, multiprocessors) : groups);
        }

        /**
         * What a multiprocessor reads, in rows: weights and, for each group of stripes, x from the
         * second cache, which is about twice as fast. It has a block at a time.
         */
        long cost(long all, int multiprocessors) {
            return ceilDiv(groups(all), multiprocessors) * (STRIPE * stripes + rows / 2);
        }
    }

    private void addProduct(int rows, int stripes, int mostStages, boolean isNorming) {
        int pack = PRODUCT_THREADS * PACK_BYTES; // of all threads
        int tiles = rows / PACK;
        boolean forGroups = tiles == 1;
        int sums = forGroups ? stripes : 0;
        int stage = 2 * stripes + (isNorming ? 0 : tiles);
        int stages = Math.min(mostStages, (room / pack - sums) / stage);
        if (stages >= MIN_STAGES) {
            String name = isNorming ? "norm_matmul" : "matmul_" + rows;
            CudaKernel kernel = module.kernel("decode_" + name + "_" + stripes);
            kernel.allowSharedMemory(room);
            int sharedBytes = (stages * stage + sums) * pack;
            products.add(new Product(kernel, rows, stripes, sharedBytes, isNorming, forGroups));
        }
    }

    private static long ceilDiv(long a, long b) {
        return (a + b - 1) / b;
    }

    /**
     * Tells whether there are kernels.
     *
     * @param device the GPU
     * @param type the element type
     * @param headSize the size of a head
     * @param sharing how many heads of queries share one of keys and values
     * @param depths over how many elements products sum
     * @return whether there are
     */
    public static boolean isSupported(
            CudaDevice device, ScalarType type, int headSize, int sharing, int... depths) {
        boolean packs = true;
        for (int depth : depths) {
            packs &= depth % PACK == 0;
        }
        return packs
                && TYPES.containsKey(type)
                && headSize % (2 * PACK) == 0
                && headSize <= MAX_HEAD
                && sharing <= MAX_SHARING
                && device.attribute(CudaAttribute.COMPUTE_CAPABILITY_MAJOR) >= FIRST_CAPABILITY
                && NativeLibrary.NVRTC.isAvailable();
    }

    /**
     * Looks tokens up.
     *
     * @param stream where
     * @param rows how many
     * @param output of shape (rows, hidden)
     * @param tokens an int each; -1 for none, {@value #CHOSEN} for what was chosen
     * @param places an int for each row: where in {@code chosen} its sequence has a place
     * @param chosen the tokens that {@link #choose} has chosen
     * @param embedding of shape (count, hidden)
     * @param first the first token that is in the embedding
     * @param count how many are
     * @param hidden the length of a row
     */
    public void embed(
            CudaStream stream,
            int rows,
            long output,
            long tokens,
            long places,
            long chosen,
            long embedding,
            long first,
            long count,
            long hidden) {
        arguments
                .clear()
                .addStruct(output, tokens, places, chosen, embedding, first, count, hidden);
        embed.launch(stream, LaunchSize.of(rows, EMBED_THREADS), arguments);
    }

    /**
     * Multiplies rows with a weight: {@code output = x weightᵀ}, or {@code silu(x gatesᵀ) · (x
     * valuesᵀ)}.
     *
     * @param stream where
     * @param gated whether the weight is that of gates and, behind it, that of values
     * @param rows how many, at most {@value #MAX_ROWS}
     * @param output rows of {@code width} at a distance of {@code stride}
     * @param x of shape (rows, depth)
     * @param weight of shape (width, depth), or (2 width, depth)
     * @param width the elements of a row of the output
     * @param depth over how many elements is summed
     * @param stride from a row of the output to the next, in elements
     * @param norm how x is normed, if {@link #canNorm} tells so; null if it is as it is
     */
    public void product(
            CudaStream stream,
            boolean gated,
            int rows,
            long output,
            long x,
            long weight,
            long width,
            long depth,
            long stride,
            Norm norm) {
        int most = Math.max(PACK, Integer.highestOneBit(2 * rows - 1));
        long stripes = ceilDiv(width, gated ? STRIPE / 2 : STRIPE);
        Product product =
                products.stream()
                        .filter(p -> p.rows == most && p.isNorming == (norm != null))
                        .min(Comparator.comparingLong(p -> p.cost(stripes, multiprocessors)))
                        .orElseThrow();
        Norm normed = norm == null ? NO_NORM : norm;
        arguments
                .clear()
                .addStruct(
                        output,
                        x,
                        weight,
                        rows,
                        width,
                        depth,
                        stride,
                        gated ? 1 : 0,
                        normed.weight,
                        normed.residual,
                        normed.newResidual,
                        Float.floatToRawIntBits(normed.epsilon));
        LaunchSize size =
                LaunchSize.of(product.blocks(stripes, multiprocessors), PRODUCT_THREADS)
                        .withShared(product.sharedBytes + (norm == null ? 0 : normBytes(depth)));
        product.kernel.launch(stream, size.asDependent(), arguments);
    }

    /**
     * What a product adds x to first: it multiplies the norm of the new residual, of the bits that
     * {@link RmsNormKernels#add} gives it. All are as long as x.
     *
     * @param weight the norm's
     * @param residual what x is added to
     * @param newResidual where the sum goes; neither where x nor where the residual is
     * @param epsilon what is added to the mean square
     */
    public record Norm(long weight, long residual, long newResidual, float epsilon) {}

    /**
     * Tells whether products norm x themselves: one row that blocks have room for. Of two, it takes
     * longer than a kernel of its own.
     *
     * @param rows how many
     * @param depth their length
     * @return whether they do
     */
    public boolean canNorm(int rows, int depth) {
        return rows == 1
                && products.stream()
                        .filter(Product::isNorming)
                        .allMatch(product -> product.sharedBytes <= room - normBytes(depth));
    }

    /** The room that a block needs for a row, the weight of its norm, and sums. */
    private static int normBytes(long depth) {
        return Math.toIntExact(2 * depth / PACK * PACK_BYTES) + NORM_SUMS;
    }

    /**
     * The arrays of an attention, by address.
     *
     * @param output of shape (rows, heads of queries, head size)
     * @param qkv of shape (rows, heads of queries, of keys, of values, head size)
     * @param keys the cache's, of shape (its rows, heads of keys, head size)
     * @param values likewise
     * @param positions of the new tokens, an int each; -1 for none; written, as the table is,
     *     before a kernel or copy that all later ones on the stream wait for: they are read while
     *     the product before still runs
     * @param table for each row, where in the cache its blocks of tokens begin; ints
     * @param cosines of shape (positions, half of the head size), in float32
     * @param sines likewise
     * @param firstChunks for each row, how many chunks the rows before have; ints
     * @param chunks room for (chunks of all rows, heads of keys, sharing, head size + {@value
     *     #CHUNK_EXTRA}) floats
     * @param ended (rows, heads of keys) ints, 0
     */
    public record Attention(
            long output,
            long qkv,
            long keys,
            long values,
            long positions,
            long table,
            long cosines,
            long sines,
            long firstChunks,
            long chunks,
            long ended) {}

    /**
     * Writes keys and values of new tokens, one of each row, to the cache, and lets their queries
     * attend to all of the row's.
     *
     * @param stream where
     * @param of the arrays
     * @param several whether rows may be of one sequence, which then have all keys before any query
     *     is looked at; to the same bits
     * @param rows how many
     * @param heads the heads of keys
     * @param chunks the most chunks of {@value #CHUNK} tokens that a row has
     * @param tableStride the ints of a row of the table
     */
    public void attend(
            CudaStream stream,
            Attention of,
            boolean several,
            int rows,
            int heads,
            int chunks,
            long tableStride) {
        arguments
                .clear()
                .addStruct(
                        of.output,
                        of.qkv,
                        of.keys,
                        of.values,
                        of.positions,
                        of.table,
                        of.cosines,
                        of.sines,
                        of.firstChunks,
                        of.chunks,
                        of.ended,
                        tableStride,
                        heads);
        if (several) {
            place.launch(stream, LaunchSize.of(rows, PROMPT_THREADS).asDependent(), arguments);
        }
        arguments.add((float) (LOG2_E / Math.sqrt(headSize)));
        // Two blocks run on a multiprocessor at once, or four of the other.
        boolean many = (long) rows * heads * chunks > 2L * multiprocessors;
        CudaKernel kernel = several ? attentionPlaced : many ? attentionLate : attention;
        LaunchSize size = LaunchSize.of(heads, ATTENTION_THREADS).withGrid(rows, chunks);
        kernel.launch(stream, size.asDependent(), arguments);
    }

    /**
     * Finds each row's highest score, the sum of all exponentials relative to it, and the first
     * token that has it, in this order, and nothing in the last place.
     *
     * @param stream where
     * @param rows how many
     * @param best where {@value #BEST_FLOATS} floats for each row go, and zeros for each row of
     *     each other rank: of shape (ranks, rows, {@value #BEST_FLOATS})
     * @param scores rows of {@code width} at a distance of {@code stride}
     * @param parts room for {@value #BEST_BLOCKS} such results for each row
     * @param ended an int for each row, 0
     * @param first the token of the first score
     * @param width the elements of a row
     * @param stride from a row to the next, in elements
     * @param rank this rank
     * @param ranks how many there are, at most 32
     */
    public void best(
            CudaStream stream,
            int rows,
            long best,
            long scores,
            long parts,
            long ended,
            long first,
            long width,
            long stride,
            int rank,
            int ranks) {
        arguments.clear().addStruct(best, scores, parts, ended, first, width, stride, rank, ranks);
        LaunchSize size = LaunchSize.of(BEST_BLOCKS, BEST_THREADS).withGrid(rows, 1);
        this.best.launch(stream, size.asDependent(), arguments);
    }

    /**
     * What tokens are chosen by, by address.
     *
     * @param best where each row's {@value #BEST_FLOATS} floats go: its highest score, the sum of
     *     all exponentials relative to it, the token that is chosen, and its score; may be pinned
     *     memory
     * @param parts what {@link #best} has found on each rank for all rows, one rank's behind the
     *     other's
     * @param chosen where tokens go, an int each
     * @param places an int for each row: where among them; -1 for none
     * @param draws {@value #DRAW_BYTES} bytes for each row: a double {@code scale}, so that the
     *     weight of a token is {@code 2^(scale · (its score - the highest))}, or 0 if the highest
     *     score wins; a double, the share of all weights that the fewest tokens which are kept
     *     have, 1 for all; a random long; and a long, how many tokens of the highest scores are
     *     kept before, 0 for all
     * @param scores of all ranks, where a token is drawn: rows of {@code width} at a distance of
     *     {@code stride}
     * @param width the elements of a row
     * @param stride from a row to the next, in elements
     */
    public record Choice(
            long best,
            long parts,
            long chosen,
            long places,
            long draws,
            long scores,
            long width,
            long stride) {}

    /**
     * Chooses each row's token: the most probable one, or one that is drawn. Keeps it for the next
     * {@link #embed}.
     *
     * @param stream where
     * @param of the arrays
     * @param ranks how many
     * @param rows how many
     */
    public void choose(CudaStream stream, Choice of, int ranks, int rows) {
        arguments
                .clear()
                .addStruct(
                        of.best, of.parts, of.chosen, of.places, of.draws, of.scores, of.width,
                        of.stride, ranks, rows);
        choose.launch(stream, LaunchSize.of(rows, CHOICE_THREADS), arguments);
    }

    /**
     * Turns queries and keys of a prompt's tokens, in place, and writes keys and values to the
     * cache.
     *
     * @param stream where
     * @param rows how many tokens
     * @param qkv of shape (rows, heads of queries, of keys, of values, head size)
     * @param keys the cache's, of shape (its rows, heads of keys, head size)
     * @param values likewise
     * @param places where in the cache each token goes; ints
     * @param start where in its sequence the first token is; the others follow it
     * @param cosines of shape (positions, half of the head size), in float32
     * @param sines likewise
     * @param queries the heads of queries, or 0 if there are keys and values alone
     * @param heads the heads of keys
     */
    public void rotate(
            CudaStream stream,
            int rows,
            long qkv,
            long keys,
            long values,
            long places,
            long start,
            long cosines,
            long sines,
            int queries,
            int heads) {
        arguments
                .clear()
                .addStruct(qkv, keys, values, places, start, cosines, sines, queries, heads);
        rotate.launch(stream, LaunchSize.of(rows, PROMPT_THREADS), arguments);
    }

    /**
     * Computes {@code silu(gates) · values}.
     *
     * @param stream where
     * @param output of shape (rows, width)
     * @param both of shape (rows, 2 width): gates and values
     * @param rows how many
     * @param width the elements of a row of the output
     */
    public void activate(CudaStream stream, long output, long both, long rows, long width) {
        arguments.clear().addStruct(output, both, rows, width);
        long packs = Math.max(1, rows * width / PACK);
        long blocks = Math.min(8L * multiprocessors, (packs + PROMPT_THREADS - 1) / PROMPT_THREADS);
        activate.launch(stream, LaunchSize.of((int) blocks, PROMPT_THREADS), arguments);
    }

    @Override
    public void close() {
        module.close();
    }
}
