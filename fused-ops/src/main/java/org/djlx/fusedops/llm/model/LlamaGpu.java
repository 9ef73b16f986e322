/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.llm.model;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.fusedops.FusedOps;
import org.djlx.fusedops.internal.LlamaKernels;
import org.djlx.fusedops.internal.RmsNormKernels;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.cuda.KernelCache;
import org.djlx.nativeops.cuda.KernelCompiler;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * The kernels of one rank's GPU for a model, and what is computed by them on the current stream.
 * Results are in float32 inside and rounded once. To be used by the rank's thread.
 */
public final class LlamaGpu implements AutoCloseable {

    private final LlamaConfig config;
    private final ProcessGroup group;
    private final int keyHeads;
    private final CudaDevice device;
    private final CurrentStreams currentStreams;
    private final LlamaKernels kernels;
    private final RmsNormKernels norms;

    private LlamaGpu(LlamaConfig config, ProcessGroup group) {
        this.config = config;
        this.group = group;
        int ranks = group.worldSize();
        keyHeads = LlamaWeights.keyHeads(config, ranks);
        device = CudaDevice.open(group.device());
        currentStreams = new CurrentStreams(device);
        KernelCompiler compiler = new KernelCompiler(KernelCache.user());
        kernels =
                new LlamaKernels(
                        device,
                        compiler,
                        config.type(),
                        config.headSize(),
                        sharing(config, ranks),
                        KvCache.BLOCK_TOKENS);
        norms = new RmsNormKernels(device, currentStreams, compiler, ranks);
    }

    private static int sharing(LlamaConfig config, int ranks) {
        return config.heads() / ranks / LlamaWeights.keyHeads(config, ranks);
    }

    /**
     * Compilations on threads of their own, so that on a machine that has no compiled kernels yet
     * ranks meet and read weights meanwhile. Who creates the kernels waits for them.
     */
    public static final class Compilations implements AutoCloseable {

        private final CudaDevice device;
        private final List<CompletableFuture<Void>> ends;

        private Compilations(CudaDevice device, List<CompletableFuture<Void>> ends) {
            this.device = device;
            this.ends = ends;
        }

        /** Waits for them, so that none goes on when a model could not be loaded. */
        @Override
        public void close() {
            ends.forEach(CompletableFuture::join);
            device.close();
        }
    }

    /**
     * Begins to compile what a rank {@linkplain #create creates}, before there is a group.
     *
     * @param device a GPU like those of all ranks
     * @return to be closed when all ranks have their kernels; empty if there are none
     */
    public static Optional<Compilations> compile(LlamaConfig config, Device device, int ranks) {
        // A GPU that is not there is for the group to tell of.
        if (!device.isGpu() || device.getDeviceId() >= CudaDevice.count()) {
            return Optional.empty();
        }
        CudaDevice gpu = CudaDevice.open(device);
        if (!isSupported(config, gpu, ranks)) {
            gpu.close();
            return Optional.empty();
        }
        KernelCompiler compiler = new KernelCompiler(KernelCache.user());
        CompletableFuture<Void> own =
                LlamaKernels.prepare(
                        gpu,
                        compiler,
                        config.type(),
                        config.headSize(),
                        sharing(config, ranks),
                        KvCache.BLOCK_TOKENS);
        CompletableFuture<Void> norms = RmsNormKernels.prepare(gpu, compiler, ranks);
        return Optional.of(new Compilations(gpu, List.of(own, norms)));
    }

    /**
     * Compiles the kernels, if there are such for the model on the GPUs of all ranks, which agree.
     *
     * @return the kernels; empty on CPUs, on GPUs of a compute capability below 8.0 and without
     *     NVRTC, for float32, for heads of other sizes than multiples of 16 up to 128, for more
     *     than 8 heads of queries on one of keys, for sizes of the hidden state, of a rank's heads
     *     together or of its part of the MLP that are no multiples of 8, and where ranks do not
     *     write into each other's memory
     */
    static Optional<LlamaGpu> create(LlamaConfig config, ProcessGroup group) {
        if (!group.device().isGpu() || config.type() == ScalarType.FLOAT32) {
            return Optional.empty();
        }
        try (NDManager manager = NDManager.newBaseManager(group.device());
                NDArray possible = manager.create(isPossible(config, group) ? 1f : 0f)) {
            group.allReduce(possible, ReduceOp.MIN).await();
            if (possible.getFloat() == 0) {
                return Optional.empty();
            }
        }
        return Optional.of(new LlamaGpu(config, group));
    }

    private static boolean isPossible(LlamaConfig config, ProcessGroup group) {
        int ranks = group.worldSize();
        // Asked also for one rank, as it loads the kernels, which no graph can record.
        boolean oneLaunch =
                FusedOps.isFused(config.type(), LlamaKernels.MAX_ROWS, config.hiddenSize(), group)
                        || ranks == 1;
        try (CudaDevice device = CudaDevice.open(group.device())) {
            return oneLaunch && isSupported(config, device, ranks);
        }
    }

    private static boolean isSupported(LlamaConfig config, CudaDevice device, int ranks) {
        return config.vocabularySize() <= LlamaKernels.MAX_TOKENS
                && LlamaKernels.isSupported(
                        device,
                        config.type(),
                        config.headSize(),
                        sharing(config, ranks),
                        config.hiddenSize(),
                        config.heads() / ranks * config.headSize(),
                        config.intermediateSize() / ranks);
    }

    CudaDevice device() {
        return device;
    }

    CurrentStreams currentStreams() {
        return currentStreams;
    }

    LlamaKernels kernels() {
        return kernels;
    }

    /**
     * What the kernels are told of tokens of a sequence that follow each other.
     *
     * @param inputs ints: the tokens, filled up, and behind them where in the cache they go
     * @param rows how many of each there are
     * @param tokens how many tokens
     * @param start where in its sequence the first token is
     */
    record Prompt(NDArray inputs, int rows, int tokens, int start) {

        private long places() {
            return Torch.dataPointer(inputs) + (long) rows * Integer.BYTES;
        }
    }

    /**
     * Copies what is to be told. The last token fills it up: what is computed of rows that count
     * for nothing is as finite as what is computed of tokens, which attend to them with shares of
     * zero.
     *
     * @param rows how many rows are computed on, of which those behind the tokens count for nothing
     */
    static Prompt prompt(NDManager manager, TokenBatch.Chunk chunk, int rows) {
        int tokens = chunk.tokens().length;
        int[] inputs = Arrays.copyOf(chunk.tokens(), 2 * rows);
        Arrays.fill(inputs, tokens, rows, inputs[tokens - 1]);
        System.arraycopy(chunk.rows(), chunk.start(), inputs, rows, tokens);
        return new Prompt(manager.create(inputs), rows, tokens, chunk.start());
    }

    /** Looks up those tokens that this rank has; zeros for others. */
    NDArray embed(Prompt prompt, LlamaWeights weights) {
        Shape shape = new Shape(prompt.rows, config.hiddenSize());
        NDArray output = Torch.empty(prompt.inputs.getManager(), shape, config.type());
        int tokens = LlamaWeights.tokens(config, group.worldSize());
        kernels.embed(
                currentStreams.get(),
                prompt.rows,
                Torch.dataPointer(output),
                Torch.dataPointer(prompt.inputs),
                0, // None is one that was chosen.
                0,
                Torch.dataPointer(weights.embedding()),
                (long) tokens * group.rank(),
                tokens,
                config.hiddenSize());
        return output;
    }

    /** Returns the norm of rows. */
    NDArray normalized(NDArray rows, NDArray weight) {
        try (NDArray zeros = Torch.empty(rows.getManager(), rows.getShape(), config.type())) {
            long byteSize = rows.size() * config.type().itemSize();
            currentStreams.get().memsetAsync(Torch.dataPointer(zeros), (byte) 0, byteSize);
            return addAndNormalize(rows, zeros, weight);
        }
    }

    /** Returns {@code silu(gates) · values} of rows that have both, one after the other. */
    NDArray activated(NDArray gateUp) {
        long rows = gateUp.getShape().get(0);
        long width = gateUp.getShape().get(1) / 2;
        NDArray output = Torch.empty(gateUp.getManager(), new Shape(rows, width), config.type());
        kernels.activate(
                currentStreams.get(),
                Torch.dataPointer(output),
                Torch.dataPointer(gateUp),
                rows,
                width);
        return output;
    }

    /**
     * Adds rows to a residual, and normalises.
     *
     * @param sum what is added; it becomes the new residual
     * @param residual the old one
     * @param weight the norm's
     * @return the norm
     */
    NDArray addAndNormalize(NDArray sum, NDArray residual, NDArray weight) {
        Shape shape = sum.getShape();
        NDArray norm = Torch.empty(sum.getManager(), shape, config.type());
        long address = Torch.dataPointer(sum);
        norms.add(
                new RmsNormKernels.Rows(
                        address,
                        Torch.dataPointer(norm),
                        address,
                        Torch.dataPointer(residual),
                        Torch.dataPointer(weight),
                        config.type(),
                        shape.get(0),
                        shape.get(1)),
                (float) config.epsilon());
        return norm;
    }

    /**
     * Turns queries and keys in place, and writes keys and values to the cache.
     *
     * @param qkv of shape (tokens, heads of queries, keys and values × head size), contiguous;
     *     there may be no queries
     */
    void rotate(int layer, NDArray qkv, KvCache cache, Attention attention, Prompt prompt) {
        int heads = (int) (qkv.getShape().get(1) / config.headSize());
        kernels.rotate(
                currentStreams.get(),
                prompt.tokens,
                Torch.dataPointer(qkv),
                Torch.dataPointer(cache.keys(layer)),
                Torch.dataPointer(cache.values(layer)),
                prompt.places(),
                prompt.start,
                Torch.dataPointer(attention.cosines()),
                Torch.dataPointer(attention.sines()),
                heads - 2 * keyHeads,
                keyHeads);
    }

    @Override
    public void close() {
        norms.close();
        kernels.close();
        currentStreams.close();
        device.close();
    }
}
