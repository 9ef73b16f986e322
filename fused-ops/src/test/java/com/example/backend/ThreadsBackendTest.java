// SPDX-License-Identifier: Apache-2.0
package com.example.backend;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.spi.Backends;
import org.djlx.fusedops.FusedOps;
import org.djlx.fusedops.UsageCounter;
import org.djlx.fusedops.cost.Path;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** The fused operators run pipelined on the buffers and streams of a backend that is not ours. */
@Timeout(120)
class ThreadsBackendTest {

    private static final int RANKS = 3;
    private static final int ROWS = 4;
    private static final int INNER = 6;
    private static final int COLUMNS = 5;

    @BeforeAll
    static void register() {
        Backends.register(ThreadsBackend.NAME, ThreadsBackend.factory());
    }

    /** Integers, so that sums are exact in any order. */
    private static double[] integers(int seed, int count) {
        return new Random(seed).ints(count, -9, 10).asDoubleStream().toArray();
    }

    private static NDArray matrix(NDManager manager, double[] values, int columns) {
        Shape shape = new Shape(values.length / columns, columns);
        return manager.create(values, shape).toType(DataType.FLOAT64, false);
    }

    /** Row by row, in plain Java. */
    private static double[] product(double[] a, double[] b, int inner, int columns) {
        double[] out = new double[a.length / inner * columns];
        for (int i = 0; i < out.length; i++) {
            for (int k = 0; k < inner; k++) {
                out[i] += a[i / columns * inner + k] * b[k * columns + i % columns];
            }
        }
        return out;
    }

    @Test
    void operatorsRunPipelined() {
        List<ProcessGroup> groups =
                ProcessGroups.local(
                        ThreadsBackend.NAME, RANKS, new BackendOptions(Duration.ofSeconds(30)));
        try (UsageCounter usage = FusedOps.countUsage()) {
            ProcessGroups.run(
                    groups,
                    group -> {
                        for (int round = 0; round < 10; round++) {
                            check(group, round);
                        }
                        return null;
                    });
            assertEquals(2 * 10 * RANKS, usage.calls(Path.PIPELINED));
            assertEquals(usage.calls(Path.PIPELINED), usage.calls());
            int puts = ThreadsBackend.puts(groups.get(0).name());
            assertEquals(2 * 10 * RANKS * (RANKS - 1), puts);
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    private static void check(ProcessGroup group, int round) {
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            double[][] shards = new double[RANKS][];
            double[] whole = new double[RANKS * ROWS * INNER];
            for (int rank = 0; rank < RANKS; rank++) {
                shards[rank] = integers(100 * round + rank, ROWS * INNER);
                System.arraycopy(shards[rank], 0, whole, rank * ROWS * INNER, ROWS * INNER);
            }
            double[] b = integers(100 * round + 50, INNER * COLUMNS);
            NDArray gathered =
                    FusedOps.allGatherMatmul(
                                    matrix(manager, shards[group.rank()], INNER),
                                    List.of(matrix(manager, b, COLUMNS)),
                                    0,
                                    group)
                            .outputs()
                            .get(0);
            assertArrayEquals(product(whole, b, INNER, COLUMNS), gathered.toDoubleArray());

            double[] sum = new double[RANKS * ROWS * COLUMNS];
            double[] own = null;
            for (int rank = 0; rank < RANKS; rank++) {
                double[] a = integers(100 * round + 60 + rank, RANKS * ROWS * INNER);
                double[] part = product(a, b, INNER, COLUMNS);
                Arrays.setAll(sum, i -> sum[i] + part[i]);
                own = rank == group.rank() ? a : own;
            }
            NDArray result =
                    FusedOps.matmulReduceScatter(
                            matrix(manager, own, INNER),
                            matrix(manager, b, COLUMNS),
                            ReduceOp.SUM,
                            0,
                            group);
            int size = ROWS * COLUMNS;
            double[] want = Arrays.copyOfRange(sum, group.rank() * size, (group.rank() + 1) * size);
            assertArrayEquals(want, result.toDoubleArray());
        }
    }
}
