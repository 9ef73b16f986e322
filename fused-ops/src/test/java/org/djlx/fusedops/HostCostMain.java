/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.TimeUnit;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.fusedops.cost.Path;
import org.djlx.nativeops.CudaDevice;
import org.djlx.nativeops.CudaStream;
import org.djlx.nativeops.CudaStreamGuard;
import org.djlx.nativeops.GpuTopology;
import org.djlx.nativeops.NativeCalls;
import org.djlx.nativeops.ScalarType;
import org.djlx.nativeops.Torch;

/**
 * Prints what an operation costs the host by how often a JVM has called it: {@code HostCostMain
 * OPERATION[-PATH] CALLS RANKS}, where the operation is allReduce, allGatherMatmul,
 * matmulReduceScatter or allReduceRmsNorm, as small as can be, and the path is forced. More ranks
 * than GPUs share them. A line has medians of the slowest rank in microseconds; "20:" is of the
 * calls from 20 on to the next number; "first 20" is there, too, and native calls of an operation.
 */
public final class HostCostMain {

    private static final int TOGETHER = 50; // calls until the GPU is waited for
    private static final int COUNTED = 20;
    private static final int LIMIT_SECONDS = 60;
    private static final int BUFFER_BYTES = 64 << 20;
    private static final int[] EDGES = {
        20, 50, 100, 150, 200, 300, 500, 1000, 2000, 4000, 6000, 8000, 10_000, 20_000, 40_000
    };

    private HostCostMain() {}

    public static void main(String[] args) {
        String[] operation = args[0].split("-");
        int calls = Integer.parseInt(args[1]);
        int ranks = Integer.parseInt(args[2]);
        if (operation.length > 1) {
            FusedOps.force(Path.valueOf(operation[1]));
        }
        CudaP2pOptions.Builder options = CudaP2pOptions.builder().optBufferSize(BUFFER_BYTES);
        if (ranks > CudaDevice.count()) {
            options.optSharedGpus(true).optTopology(GpuTopology.Kind.FULLY_CONNECTED_NVLINK);
        }
        double[][] micros = new double[ranks][calls];
        String[] counts = new String[ranks];
        // A barrier of the group is NCCL's, which knows no ranks that share a GPU.
        CyclicBarrier meeting = new CyclicBarrier(ranks);
        ProcessGroups.run(
                ProcessGroups.local("cuda_p2p", ranks, options.build()),
                group -> {
                    double[] own = micros[group.rank()];
                    counts[group.rank()] = measure(operation[0], group, meeting, own);
                    return null;
                });
        StringBuilder line = new StringBuilder(args[0]);
        line.append(String.format(" first %d %.0f", EDGES[0], worst(micros, 0, EDGES[0])));
        for (int i = 0; i + 1 < EDGES.length && EDGES[i] < calls; i++) {
            int end = Math.min(calls, EDGES[i + 1]);
            line.append(String.format(" %d:%.1f", EDGES[i], worst(micros, EDGES[i], end)));
        }
        System.out.println(line + " " + counts[0]);
        System.exit(0); // DJL's threads need not end.
    }

    /** Times calls, on a stream of their own, and returns the native calls of one. */
    private static String measure(
            String operation, ProcessGroup group, CyclicBarrier meeting, double[] micros)
            throws Exception {
        try (CudaDevice device = CudaDevice.open(group.device());
                CudaStream stream = CudaStream.create(device);
                NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
            CudaStreamGuard guard = Torch.cudaStreamGuard(group.device(), stream.handle());
            Runnable call = call(operation, group, manager);
            for (int i = 0; i < micros.length; i++) {
                if (i % TOGETHER == 0) {
                    stream.synchronize();
                    meeting.await(LIMIT_SECONDS, TimeUnit.SECONDS);
                }
                long start = System.nanoTime();
                call.run();
                micros[i] = (System.nanoTime() - start) / 1e3;
            }
            NativeCalls before = NativeCalls.ofThread();
            for (int i = 0; i < COUNTED; i++) {
                call.run();
            }
            NativeCalls after = NativeCalls.ofThread();
            stream.synchronize();
            meeting.await(LIMIT_SECONDS, TimeUnit.SECONDS);
            guard.close();
            return String.format(
                    "driver calls %.1f, other native ones %.1f",
                    (double) (after.driver() - before.driver()) / COUNTED,
                    (double) (after.other() - before.other()) / COUNTED);
        }
    }

    private static Runnable call(String operation, ProcessGroup group, NDManager manager) {
        int rows = 32;
        int all = rows * group.worldSize();
        int hidden = 4096;
        return switch (operation) {
            case "allReduce" -> {
                NDArray x = array(manager, new Shape(hidden / 2));
                yield () -> group.allReduce(x, ReduceOp.SUM).blockCurrentStream();
            }
            case "allGatherMatmul" -> {
                NDArray a = array(manager, new Shape(rows, all));
                List<NDArray> b = List.of(array(manager, new Shape(all, rows)));
                yield () ->
                        FusedOps.allGatherMatmul(a, b, 0, group, false).outputs().get(0).close();
            }
            case "matmulReduceScatter" -> {
                NDArray a = array(manager, new Shape(all, rows));
                NDArray b = array(manager, new Shape(rows, all));
                yield () -> FusedOps.matmulReduceScatter(a, b, ReduceOp.SUM, 0, group).close();
            }
            case "allReduceRmsNorm" -> {
                NDArray partial = array(manager, new Shape(8, hidden));
                NDArray residual = array(manager, new Shape(8, hidden));
                NDArray weight = array(manager, new Shape(hidden));
                yield () -> {
                    NormedResidual result =
                            FusedOps.allReduceRmsNorm(partial, residual, weight, 1e-5f, group);
                    result.residual().close();
                    result.norm().close();
                };
            }
            default -> throw new IllegalArgumentException(operation);
        };
    }

    private static NDArray array(NDManager manager, Shape shape) {
        NDArray array = Torch.empty(manager, shape, ScalarType.BFLOAT16);
        Torch.copy(array, manager.zeros(shape));
        return array;
    }

    private static double worst(double[][] micros, int from, int to) {
        double worst = 0;
        for (double[] ofRank : micros) {
            double[] part = Arrays.copyOfRange(ofRank, from, to);
            Arrays.sort(part);
            worst = Math.max(worst, part[part.length / 2]);
        }
        return worst;
    }
}
