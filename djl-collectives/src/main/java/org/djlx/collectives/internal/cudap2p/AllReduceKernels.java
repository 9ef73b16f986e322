/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.cudap2p;

import java.time.Duration;
import java.util.EnumMap;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.djlx.nativeops.CudaDevice;
import org.djlx.nativeops.CudaKernel;
import org.djlx.nativeops.CudaModule;
import org.djlx.nativeops.CudaStream;
import org.djlx.nativeops.GpuTopology;
import org.djlx.nativeops.KernelArguments;
import org.djlx.nativeops.KernelCompiler;
import org.djlx.nativeops.KernelSource;
import org.djlx.nativeops.LaunchSize;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.ScalarType;

/**
 * Launches the kernels of {@code all_reduce.cu} for one rank. Launches come one at a time: they are
 * operations of the group.
 */
final class AllReduceKernels implements AutoCloseable {

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
    private static final Map<ScalarType, String> TYPES =
            Map.of(
                    ScalarType.FLOAT32, "float32",
                    ScalarType.FLOAT16, "float16",
                    ScalarType.BFLOAT16, "bfloat16");

    // Where a launch's own values begin in the struct that all launches share.
    private static final int TIMEOUT = RegionLayout.MAX_RANKS + 1;
    private static final int SLOT = RegionLayout.MAX_RANKS + 3;

    private final P2pRegion region;
    private final int rank;
    private final CudaModule module;
    private final Map<Algorithm, Map<ScalarType, CudaKernel>> kernels =
            new EnumMap<>(Algorithm.class);
    private final WaitStatus status;
    private final KernelArguments arguments = new KernelArguments();
    private final long[] launch;
    private final Algorithm barrier;
    private final int four; // of the mesh
    private final int relay;

    AllReduceKernels(
            P2pRegion region, CudaDevice device, WaitStatus status, KernelCompiler compiler) {
        this.region = region;
        this.status = status;
        this.rank = region.rank();
        module =
                compiler.load(
                        device,
                        KernelSource.ofResource(NativeLibrary.class, "all_reduce/all_reduce.cu"));
        for (Algorithm algorithm : Algorithm.values()) {
            Map<ScalarType, CudaKernel> ofType = new EnumMap<>(ScalarType.class);
            // A GPU from before bfloat16 has no kernels for that.
            TYPES.forEach(
                    (type, name) ->
                            module.findKernel(algorithm.kernel + "_" + name)
                                    .ifPresent(kernel -> ofType.put(type, kernel)));
            kernels.put(algorithm, ofType);
        }
        launch = launch();
        P2pLinks links = region.links();
        boolean mesh = links.kind() == GpuTopology.Kind.HYBRID_CUBE_MESH;
        barrier = mesh ? Algorithm.MESH : Algorithm.ONE_SHOT;
        four = mesh ? links.four(rank) : 0;
        relay = mesh ? links.relay(rank) : 0;
    }

    /** The kernels' struct Launch. */
    private long[] launch() {
        long[] words = new long[RegionLayout.MAX_RANKS + 6];
        for (int peer = 0; peer < region.ranks(); peer++) {
            words[peer] = region.address(peer);
        }
        words[RegionLayout.MAX_RANKS] = status.address();
        words[TIMEOUT + 1] = region.layout().half();
        words[SLOT + 1] = rank;
        words[SLOT + 2] = region.ranks();
        return words;
    }

    /** The names of the kernels that there are. */
    Set<String> names() {
        return kernels.values().stream()
                .flatMap(ofType -> ofType.values().stream())
                .map(CudaKernel::name)
                .collect(Collectors.toCollection(TreeSet::new));
    }

    /** Gives up all kernels but these, which the GPUs of all ranks have. */
    void retain(Set<String> names) {
        kernels.values()
                .forEach(ofType -> ofType.values().removeIf(k -> !names.contains(k.name())));
    }

    /** Tells whether there is a kernel that does so. */
    boolean isSupported(Algorithm algorithm, ScalarType type) {
        return kernels.get(algorithm).containsKey(type);
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
        launch[TIMEOUT] = timeout.toNanos();
        launch[SLOT] =
                switch (algorithm) {
                    case ONE_SHOT -> layout.oneShotSlot();
                    case TWO_SHOT -> layout.twoShotSlot();
                    case MESH -> layout.meshSlot();
                };
        arguments.clear().add(address).add(count).addStruct(launch).add(divisor);
        if (algorithm == Algorithm.MESH) {
            arguments.add(four).add(relay);
        }
        long packs = (count * type.itemSize() + 15) / 16;
        long work = algorithm == Algorithm.TWO_SHOT ? (packs + ranks - 1) / ranks : packs;
        int blocks = (int) Math.max(1, Math.min(MAX_BLOCKS, (work + THREADS - 1) / THREADS));
        kernels.get(algorithm).get(type).launch(stream, LaunchSize.of(blocks, THREADS), arguments);
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
        enqueue(stream, barrier, any, 0, ScalarType.FLOAT32, 1, timeout);
    }

    @Override
    public void close() {
        module.close();
    }
}
