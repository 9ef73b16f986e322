/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.cudap2p;

import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveTimeoutException;
import org.djlx.collectives.Operation;
import org.djlx.nativeops.AtomicBuffer;
import org.djlx.nativeops.CudaDevice;
import org.djlx.nativeops.CudaKernel;
import org.djlx.nativeops.CudaMemory;
import org.djlx.nativeops.CudaModule;
import org.djlx.nativeops.CudaStream;
import org.djlx.nativeops.KernelArguments;
import org.djlx.nativeops.KernelCompiler;
import org.djlx.nativeops.KernelSource;
import org.djlx.nativeops.LaunchSize;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.NativeMemory;
import org.djlx.nativeops.ScalarType;

/** Launches the kernels of {@code all_reduce.cu} for one rank. */
final class P2pAllReduce implements AutoCloseable {

    /** How an all-reduce is done. */
    enum Algorithm {
        ONE_SHOT("one_shot"),
        TWO_SHOT("two_shot"),
        MESH("mesh");

        private final String kernel;

        Algorithm(String kernel) {
            this.kernel = kernel;
        }
    }

    private static final int THREADS = 512;
    private static final int MAX_BLOCKS = 64;
    private static final int STOP = 0;
    private static final int MISSING = 4;
    private static final Map<ScalarType, String> TYPES =
            Map.of(
                    ScalarType.FLOAT32, "float32",
                    ScalarType.FLOAT16, "float16",
                    ScalarType.BFLOAT16, "bfloat16");

    private final P2pRegion region;
    private final int rank;
    private final CudaModule module;
    private final Map<String, CudaKernel> kernels = new HashMap<>();
    private final NativeMemory status;
    private final AtomicBuffer statusWords;

    P2pAllReduce(P2pRegion region, CudaDevice device, int rank, KernelCompiler compiler) {
        this.region = region;
        this.rank = rank;
        module =
                compiler.load(
                        device,
                        KernelSource.ofResource(NativeLibrary.class, "all_reduce/all_reduce.cu"));
        // All kernels are loaded now: doing so later could wait for kernels that wait for a peer.
        for (Algorithm algorithm : Algorithm.values()) {
            for (String type : TYPES.values()) {
                String name = algorithm.kernel + "_" + type;
                kernels.put(name, module.kernel(name));
            }
        }
        status = CudaMemory.allocatePinned(device, 4096);
        statusWords = new AtomicBuffer(status, 0, 64);
        statusWords.putIntVolatile(STOP, 0);
        statusWords.putIntVolatile(MISSING, 0);
    }

    static boolean isSupported(ScalarType type) {
        return TYPES.containsKey(type);
    }

    /**
     * Enqueues an all-reduce in place.
     *
     * @param stream where
     * @param algorithm how
     * @param address the tensor, aligned to its elements
     * @param count its elements; with none, it is a barrier
     * @param type their type
     * @param divisor what the sum is divided by
     * @param timeout how long the kernel waits for other ranks
     */
    void enqueue(
            CudaStream stream,
            Algorithm algorithm,
            long address,
            long count,
            ScalarType type,
            float divisor,
            Duration timeout) {
        RegionLayout layout = region.layout();
        int ranks = region.ranks();
        long[] launch = new long[RegionLayout.MAX_RANKS + 6];
        for (int peer = 0; peer < ranks; peer++) {
            launch[peer] = region.address(peer);
        }
        int next = RegionLayout.MAX_RANKS;
        launch[next++] = status.address();
        launch[next++] = timeout.toNanos();
        launch[next++] = layout.half();
        launch[next++] =
                switch (algorithm) {
                    case ONE_SHOT -> layout.oneShotSlot();
                    case TWO_SHOT -> layout.twoShotSlot();
                    case MESH -> layout.meshSlot();
                };
        launch[next++] = rank;
        launch[next] = ranks;
        KernelArguments arguments =
                new KernelArguments().add(address).add(count).addStruct(launch).add(divisor);
        if (algorithm == Algorithm.MESH) {
            arguments.add(rank < 4 ? 0x0f : 0xf0).add(rank ^ 4);
        }
        long packs = (count * type.itemSize() + 15) / 16;
        long work = algorithm == Algorithm.TWO_SHOT ? (packs + ranks - 1) / ranks : packs;
        int blocks = (int) Math.max(1, Math.min(MAX_BLOCKS, (work + THREADS - 1) / THREADS));
        kernels.get(algorithm.kernel + "_" + TYPES.get(type))
                .launch(stream, LaunchSize.of(blocks, THREADS), arguments);
    }

    /**
     * Enqueues a barrier: what follows on the stream waits for what was before on the streams of
     * all ranks. Its epoch is counted in memory, so a graph can replay it.
     *
     * @param stream where
     * @param timeout how long it waits for other ranks
     */
    void barrier(CudaStream stream, Duration timeout) {
        long any = region.address(rank); // Nothing of it is read or written.
        enqueue(stream, Algorithm.ONE_SHOT, any, 0, ScalarType.FLOAT32, 1, timeout);
    }

    /** Makes kernels end that wait for other ranks, now and from now on. */
    void stop() {
        statusWords.putIntVolatile(STOP, 1);
    }

    /** Tells for whom a kernel has waited in vain, if one has. */
    Optional<String> missing() {
        int missing = statusWords.getIntVolatile(MISSING);
        return missing == 0
                ? Optional.empty()
                : Optional.of("rank " + (missing - 1) + " did not arrive at an all-reduce");
    }

    /** What went wrong in a kernel that has ended, or null. */
    CollectiveException failure(Operation operation) {
        int missing = statusWords.getIntVolatile(MISSING);
        if (missing == 0) {
            return null;
        }
        return new CollectiveTimeoutException(
                operation
                        + " timed out on rank "
                        + rank
                        + " after "
                        + operation.timeout()
                        + ": rank "
                        + (missing - 1)
                        + " did not arrive",
                List.of(missing - 1));
    }

    @Override
    public void close() {
        module.close();
        status.close();
    }
}
