// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.lang.management.GarbageCollectorMXBean;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;
import javax.management.JMException;
import javax.management.ObjectName;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.ShmOptions;
import org.djlx.collectives.internal.cudap2p.P2pRanks;
import org.djlx.fusedops.cost.Path;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/**
 * In steady state, calls create no expensive objects: no manager, no direct memory, no event. Pools
 * grow while more operations run than ever before. Steady state means that several rounds of calls
 * in a row create nothing.
 *
 * <p>The JVM counts all objects in its heap, garbage included. No object is missed unless garbage
 * is collected.
 */
@Timeout(200)
class SteadyStateTest {

    private static final int RANKS = 2;
    private static final int CALLS = 20; // of each operator, in a round
    private static final int STEADY_ROUNDS = 5;
    private static final int MOST_ROUNDS = 30;
    private static final List<String> DEAR =
            List.of(
                    "ai.djl.pytorch.engine.PtNDManager",
                    "java.nio.DirectByteBuffer",
                    "com.sun.jna.Memory",
                    "org.djlx.nativeops.cuda.CudaEvent",
                    "org.djlx.nativeops.cuda.CudaStream");

    /** The arrays of one rank. */
    private static final class Operands {

        final NDArray a;
        final NDArray front; // A with another dimension to be gathered
        final NDArray b;
        final NDArray product;
        final NDArray strided;
        final NDArray whole;
        final NDArray part;
        final NDArray stridedWhole;
        final NDArray stridedPart;
        final NDArray weight;

        final NDArray half;
        final NDArray halfB;
        final NDArray halfProduct;

        Operands(NDManager manager) {
            a = manager.ones(new Shape(4, 8));
            front = manager.ones(new Shape(2, 4, 8));
            b = manager.ones(new Shape(8, 6));
            // Neither rows nor columns are contiguous.
            strided = manager.ones(new Shape(8, 6, 2)).get(":, :, 0");
            product = manager.ones(new Shape(2 * 4, 8));
            whole = manager.ones(new Shape(2 * 4, 8));
            part = manager.ones(new Shape(4, 8));
            stridedWhole = manager.ones(new Shape(8, 2 * 4)).transpose();
            stridedPart = manager.ones(new Shape(8, 4)).transpose();
            weight = manager.ones(new Shape(8));
            half = Torch.cast(a, ScalarType.BFLOAT16);
            halfB = Torch.cast(manager.ones(new Shape(8, 16)), ScalarType.BFLOAT16);
            halfProduct = Torch.cast(product, ScalarType.BFLOAT16);
        }

        /** Operands that FUSED takes. */
        void callHalves(ProcessGroup group) {
            close(FusedOps.allGatherMatmul(half, List.of(halfB), 0, group));
            FusedOps.matmulReduceScatter(halfProduct, halfB, ReduceOp.SUM, 0, group).close();
            FusedOps.matmulReduceScatter(halfProduct, halfB, ReduceOp.AVG, 0, group).close();
        }

        void call(ProcessGroup group) {
            close(FusedOps.allGatherMatmul(a, List.of(b), 0, group));
            close(FusedOps.allGatherMatmul(a, List.of(strided), 0, group));
            close(FusedOps.allGatherMatmul(front, List.of(b), 1, group));
            for (ReduceOp op : List.of(ReduceOp.SUM, ReduceOp.AVG)) {
                FusedOps.matmulReduceScatter(product, b, op, 0, group).close();
            }
            FusedOps.matmulReduceScatter(front, strided, ReduceOp.SUM, 1, group).close();
            FusedOps.matmulReduceScatter(a, strided, ReduceOp.SUM, 1, group).close();
            if (group.device().isGpu()) { // DJL makes an array of each scalar for libtorch.
                NormedResidual normed = FusedOps.allReduceRmsNorm(a, a, weight, 1e-5f, group);
                normed.residual().close();
                normed.norm().close();
            }
            LowContention.allGather(group, whole, part).await();
            LowContention.allGather(group, stridedWhole, stridedPart).await();
            LowContention.reduceScatter(group, part, whole, ReduceOp.SUM).await();
            LowContention.reduceScatter(group, stridedPart, stridedWhole, ReduceOp.AVG).await();
        }

        private static void close(GatheredMatmul result) {
            result.outputs().forEach(NDArray::close);
        }
    }

    @Test
    void onTheCpu() {
        ShmOptions options = ShmOptions.builder().optBufferSize(1 << 20).build();
        check(ProcessGroups.local("shm", RANKS, options));
    }

    @Test
    @Tag("gpu")
    void onGpus() {
        P2pRanks.require();
        Assumptions.assumeFalse(
                P2pRanks.isShared(), "cuBLAS loads a kernel while those of other ranks wait");
        check(ProcessGroups.local("cuda_p2p", RANKS, P2pRanks.options().build()));
    }

    private static void check(List<ProcessGroup> groups) {
        NDManager[] managers = new NDManager[RANKS];
        Operands[] operands = new Operands[RANKS];
        try {
            for (int rank = 0; rank < RANKS; rank++) {
                managers[rank] = NDManager.newBaseManager(groups.get(rank).device(), "PyTorch");
                operands[rank] = new Operands(managers[rank]);
            }
            Consumer<ProcessGroup> round =
                    group -> {
                        for (int i = 0; i < CALLS; i++) {
                            operands[group.rank()].call(group);
                        }
                    };
            try (UsageCounter counter = FusedOps.countUsage()) {
                for (Path path : List.of(Path.PIPELINED, Path.GATHERED)) {
                    checkWarm(path, groups, round);
                }
                if (groups.get(0).device().isGpu() && FusedOpsGpuTest.isHopper()) {
                    Consumer<ProcessGroup> halves =
                            group -> {
                                for (int i = 0; i < CALLS; i++) {
                                    operands[group.rank()].callHalves(group);
                                }
                            };
                    long norms = counter.calls(Path.FUSED);
                    checkWarm(Path.FUSED, groups, halves);
                    assertTrue(
                            counter.calls(Path.FUSED) - norms
                                    >= 3L * CALLS * STEADY_ROUNDS * RANKS);
                }
                assertEquals(0, counter.calls(Path.NCCL));
            }
            if (groups.get(0).device().isGpu() && P2pRanks.isShared()) {
                return; // NCCL needs a GPU for each rank.
            }
            checkWarm(Path.NCCL, groups, round);
        } finally {
            groups.forEach(ProcessGroup::destroy);
            for (NDManager manager : managers) {
                if (manager != null) {
                    manager.close();
                }
            }
        }
    }

    /** Checks rounds of calls on a path, if it is possible. */
    private static void checkWarm(
            Path path, List<ProcessGroup> groups, Consumer<ProcessGroup> round) {
        FusedOps.Scope forced = FusedOps.force(path); // On all ranks.
        try {
            runAll(groups, round); // Which also makes the plans.
            List<Map<String, Long>> made = new ArrayList<>();
            int steady = 0;
            for (int i = 0; steady < STEADY_ROUNDS && i < MOST_ROUNDS; i++) {
                Map<String, Long> madeInRound = madeBy(() -> runAll(groups, round));
                if (madeInRound != null) {
                    steady = madeInRound.isEmpty() ? steady + 1 : 0;
                    made.add(madeInRound);
                }
            }
            assertEquals(STEADY_ROUNDS, steady, () -> path + ", made by each round: " + made);
        } finally {
            forced.close();
        }
    }

    private static void runAll(List<ProcessGroup> groups, Consumer<ProcessGroup> round) {
        ProcessGroups.run(
                groups,
                group -> {
                    round.accept(group);
                    return null;
                });
    }

    /**
     * Returns the number of expensive objects that some code creates, for classes with at least one
     * object for each call. Null if garbage was collected meanwhile. New threads may create a few
     * objects once.
     */
    private static Map<String, Long> madeBy(Runnable code) {
        long collections = collections();
        Map<String, Long> before = instances();
        code.run();
        Map<String, Long> made = instances();
        if (collections() != collections) {
            return null;
        }
        made.replaceAll((type, count) -> count - before.getOrDefault(type, 0L));
        made.values().removeIf(count -> count < CALLS);
        return made;
    }

    private static long collections() {
        return ManagementFactory.getGarbageCollectorMXBeans().stream()
                .mapToLong(GarbageCollectorMXBean::getCollectionCount)
                .sum();
    }

    private static Map<String, Long> instances() {
        Map<String, Long> counts = new HashMap<>();
        for (String line : histogram().lines().toList()) {
            String[] words = line.trim().split("\\s+"); // Number, instances, bytes, class.
            if (words.length >= 4 && DEAR.contains(words[3])) {
                counts.put(words[3], Long.parseLong(words[1]));
            }
        }
        return counts;
    }

    private static String histogram() {
        try {
            return (String)
                    ManagementFactory.getPlatformMBeanServer()
                            .invoke(
                                    new ObjectName("com.sun.management:type=DiagnosticCommand"),
                                    "gcClassHistogram",
                                    new Object[] {new String[] {"-all"}},
                                    new String[] {String[].class.getName()});
        } catch (JMException e) {
            throw new AssertionError(e);
        }
    }
}
