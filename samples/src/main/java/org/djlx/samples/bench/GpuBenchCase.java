/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.bench;

import static org.djlx.samples.bench.GpuBenchRow.MATMUL;
import static org.djlx.samples.bench.GpuBenchRow.NCCL;
import static org.djlx.samples.bench.GpuBenchRow.OURS;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.fusedops.FusedOps;
import org.djlx.nativeops.ScalarType;
import org.djlx.nativeops.Torch;

/**
 * An operation at one size in bfloat16, the ways to do it, and what is right.
 *
 * @param operation all-reduce, or a fused operator
 * @param bytes the size of an all-reduce's tensor
 * @param m the rows of the unsharded A, for a fused operator
 * @param n the columns of the unsharded B
 * @param k what they have in common
 */
record GpuBenchCase(Operation operation, long bytes, int m, int n, int k) {

    /** What can be measured, by the names of the API. */
    enum Operation {
        allReduce,
        allGatherMatmul,
        matmulReduceScatter
    }

    private static final double HALF_ULP = 1 / 256.0;

    static GpuBenchCase allReduce(long bytes) {
        return new GpuBenchCase(Operation.allReduce, bytes, 0, 0, 0);
    }

    static GpuBenchCase fused(Operation operation, int m, int n, int k) {
        return new GpuBenchCase(operation, 0, m, n, k);
    }

    /**
     * A rank that measures.
     *
     * @param ours its handle of the group that is measured
     * @param nccl its handle of the group to compare with; null if there is none
     * @param manager of its arrays
     * @param meeting where it meets the others
     * @param marks in its work
     */
    record Rank(
            ProcessGroup ours, ProcessGroup nccl, NDManager manager, Meeting meeting, Marks marks) {

        int worldSize() {
            return ours.worldSize();
        }

        /** All ranks' arrays in float64, on this rank's device. */
        List<NDArray> allInFloat64(NDArray array) {
            NDArray wide = doubles(array);
            marks.synchronize();
            return meeting.exchange(ours.rank(), wide);
        }

        NDArray random(long... sizes) {
            try (NDArray floats = manager.randomNormal(new Shape(sizes))) {
                return Torch.cast(floats, ScalarType.BFLOAT16);
            }
        }

        NDArray empty(long... sizes) {
            return Torch.empty(manager, new Shape(sizes), ScalarType.BFLOAT16);
        }
    }

    /** The ways to do the operation, and the result in float64. */
    private record Prepared(Map<String, Contender> contenders, Supplier<NDArray> expected) {}

    /** What this rank measures; the error is the largest of its results. */
    GpuBenchRow measure(Rank rank, int gpus, int rounds) {
        Prepared prepared =
                switch (operation) {
                    case allReduce -> prepareAllReduce(rank);
                    case allGatherMatmul -> prepareGather(rank);
                    case matmulReduceScatter -> prepareScatter(rank);
                };
        Map<String, CallTimes> times =
                new SideBySide(rank.marks, rank.meeting, rounds).measure(prepared.contenders);
        double error = 0;
        NDArray expected = prepared.expected.get();
        for (Contender contender : prepared.contenders.values()) {
            NDArray result = contender.result();
            if (result != null) {
                error = Math.max(error, error(result, expected));
            }
        }
        boolean fused = operation != Operation.allReduce;
        return new GpuBenchRow(
                operation.name(),
                fused ? List.of(m, n, k) : null,
                fused ? null : bytes,
                rank.worldSize(),
                rank.worldSize(),
                gpus,
                error,
                // NCCL rounds at each rank; a product is rounded once more before it is reduced.
                HALF_ULP * (rank.worldSize() + 1),
                times);
    }

    private Prepared prepareAllReduce(Rank rank) {
        NDArray input = rank.random(bytes / 2);
        Map<String, Contender> contenders = new LinkedHashMap<>();
        contenders.put(OURS, allReduce(rank, rank.ours, input));
        if (rank.nccl != null) {
            contenders.put(NCCL, allReduce(rank, rank.nccl, input));
        }
        return new Prepared(
                contenders,
                () -> {
                    List<NDArray> all = rank.allInFloat64(input);
                    return NDArrays.add(all.toArray(NDArray[]::new)).div(all.size());
                });
    }

    private static Contender allReduce(Rank rank, ProcessGroup group, NDArray input) {
        NDArray tensor = rank.empty(input.size());
        Torch.copy(tensor, input);
        return new Contender() {
            @Override
            public NDArray call() {
                // The average: sums of sums would end in infinity.
                complete(group, group.allReduce(tensor, ReduceOp.AVG));
                return null;
            }

            @Override
            public NDArray result() {
                Torch.copy(tensor, input);
                call();
                return tensor;
            }
        };
    }

    private Prepared prepareGather(Rank rank) {
        NDArray a = rank.random(m / rank.worldSize(), k);
        NDArray b = rank.random(k, n / rank.worldSize());
        NDArray gathered = rank.random(m, k);
        Map<String, Contender> contenders = new LinkedHashMap<>();
        contenders.put(
                OURS,
                checked(
                        () ->
                                FusedOps.allGatherMatmul(a, List.of(b), 0, rank.ours, false)
                                        .outputs()
                                        .get(0)));
        if (rank.nccl != null) {
            contenders.put(
                    NCCL,
                    checked(
                            () -> {
                                complete(rank.nccl, rank.nccl.allGatherIntoTensor(gathered, a));
                                return gathered.matMul(b);
                            }));
        }
        contenders.put(MATMUL, () -> gathered.matMul(b));
        return new Prepared(
                contenders,
                () -> {
                    NDList all = new NDList(rank.allInFloat64(a));
                    return NDArrays.concat(all, 0).matMul(doubles(b));
                });
    }

    private Prepared prepareScatter(Rank rank) {
        int rows = m / rank.worldSize();
        NDArray a = rank.random(m, k / rank.worldSize());
        NDArray b = rank.random(k / rank.worldSize(), n);
        NDArray part = rank.empty(rows, n);
        Map<String, Contender> contenders = new LinkedHashMap<>();
        contenders.put(
                OURS,
                checked(() -> FusedOps.matmulReduceScatter(a, b, ReduceOp.SUM, 0, rank.ours)));
        if (rank.nccl != null) {
            contenders.put(
                    NCCL,
                    new Contender() {
                        @Override
                        public NDArray call() {
                            try (NDArray product = a.matMul(b)) {
                                complete(
                                        rank.nccl,
                                        rank.nccl.reduceScatterTensor(part, product, ReduceOp.SUM));
                            }
                            return null;
                        }

                        @Override
                        public NDArray result() {
                            call();
                            return part;
                        }
                    });
        }
        contenders.put(MATMUL, () -> a.matMul(b));
        int first = rank.ours.rank() * rows;
        return new Prepared(
                contenders,
                () -> {
                    List<NDArray> as = rank.allInFloat64(a);
                    List<NDArray> bs = rank.allInFloat64(b);
                    NDArray sum = null;
                    for (int i = 0; i < as.size(); i++) {
                        NDArray product =
                                as.get(i).get(first + ":" + (first + rows)).matMul(bs.get(i));
                        sum = sum == null ? product : sum.addi(product);
                    }
                    return sum;
                });
    }

    /** A contender whose result is what it returns. */
    private static Contender checked(Contender contender) {
        return new Contender() {
            @Override
            public NDArray call() {
                return contender.call();
            }

            @Override
            public NDArray result() {
                return contender.call();
            }
        };
    }

    private static void complete(ProcessGroup group, Work work) {
        if (group.device().isGpu()) {
            work.blockCurrentStream();
        } else {
            work.await();
        }
    }

    private static double error(NDArray result, NDArray expected) {
        return doubles(result).sub(expected).abs().max().getDouble()
                / expected.abs().max().getDouble();
    }

    private static NDArray doubles(NDArray array) {
        return Torch.cast(array, ScalarType.FLOAT64);
    }

    /** What the slowest and the worst rank have shown; an error of NaN is the worst. */
    static GpuBenchRow slowest(GpuBenchRow a, GpuBenchRow b) {
        Map<String, CallTimes> columns = new LinkedHashMap<>(a.columns());
        b.columns().forEach((name, times) -> columns.merge(name, times, CallTimes::slowest));
        return new GpuBenchRow(
                a.operation(),
                a.mnk(),
                a.bytes(),
                a.ranks(),
                a.threads(),
                a.gpus(),
                Math.max(a.error(), b.error()),
                a.allowedError(),
                columns);
    }
}
