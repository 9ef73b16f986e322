/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops;

import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.BrokenBarrierException;
import java.util.concurrent.CyclicBarrier;
import java.util.stream.Collectors;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.internal.cudap2p.P2pRanks;
import org.djlx.fusedops.ExactCase.Kind;
import org.djlx.fusedops.cost.Path;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.torch.ScalarType;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/**
 * Fused operators with three, four and eight ranks, on each path. cuBLAS multiplies these sizes in
 * clusters of eight thread blocks that fill an SM each. If ranks share a GPU, the clusters must be
 * resident while kernels of other ranks wait.
 */
@Tag("gpu")
@Timeout(300)
class ManyRanksGpuTest {

    private static final int CALLS = 100;
    private static final long BUFFER = 64 << 20;

    @ParameterizedTest
    @CsvSource({
        "3, 267, 384, 768",
        "3, 280, 376, 408",
        "3, 256, 384, 768",
        "4, 171, 512, 1024",
        "4, 171, 448, 672",
        "4, 256, 512, 1024",
        "8, 125, 1024, 1024",
    })
    void ends(int ranks, int rows, int columns, int inner) {
        List<ProcessGroup> groups = groups(ranks);
        try {
            for (Path path : Path.values()) {
                if (path == Path.NCCL) {
                    continue;
                }
                for (Kind kind : List.of(Kind.MATMUL_REDUCE_SCATTER, Kind.ALL_GATHER_MATMUL)) {
                    ExactCase one =
                            new ExactCase(
                                    kind, ScalarType.BFLOAT16, rows, inner, List.of(columns), 7);
                    run(groups, path, List.of(one), CALLS);
                }
            }
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    /** Runs ranks as threads, on GPUs of their own if there are enough. */
    static List<ProcessGroup> groups(int ranks) {
        P2pRanks.require(ranks);
        return ProcessGroups.local(
                "cuda_p2p", ranks, P2pRanks.options().optBufferSize(BUFFER).build());
    }

    /**
     * Runs cases in order on all ranks, each several times in a row, and compares the results.
     *
     * @param path the path that is forced where it is possible; null if the model chooses
     */
    @SuppressWarnings("try") // the scope is not named in the body
    static void run(List<ProcessGroup> groups, Path path, List<ExactCase> cases, int times) {
        CyclicBarrier step = new CyclicBarrier(groups.size());
        try (FusedOps.Scope scope = path == null ? () -> {} : FusedOps.force(path)) {
            ProcessGroups.run(
                    groups,
                    group -> {
                        P2pRanks.run(group, () -> run(group, cases, times, step));
                        return null;
                    });
        }
    }

    private static void run(
            ProcessGroup group, List<ExactCase> cases, int times, CyclicBarrier step) {
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch");
                CudaDevice device = CudaDevice.open(group.device());
                CurrentStreams streams = new CurrentStreams(device)) {
            List<NDList> inputs =
                    cases.stream()
                            .map(one -> one.inputs(group, manager))
                            .collect(Collectors.toList());
            List<NDList> results = new ArrayList<>();
            streams.get().synchronize();
            await(step);
            for (int i = 0; i < cases.size(); i++) {
                NDList result = null;
                for (int time = 0; time < times; time++) {
                    if (result != null) {
                        result.close();
                    }
                    result = cases.get(i).run(group, inputs.get(i));
                    streams.get().synchronize();
                }
                results.add(result);
                // cuBLAS loads a kernel with the first product of a size, which must not happen
                // while kernels on the same GPU wait for this rank; see optSharedGpus.
                await(step);
            }
            streams.get().synchronize();
            await(step);
            for (int i = 0; i < cases.size(); i++) {
                try (NDManager scratch = NDManager.newBaseManager(group.device(), "PyTorch")) {
                    cases.get(i).check(group, scratch, results.get(i));
                }
            }
            await(step);
        }
    }

    private static void await(CyclicBarrier step) {
        try {
            step.await();
        } catch (InterruptedException | BrokenBarrierException e) {
            throw new IllegalStateException("another rank failed", e);
        }
    }
}
