/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives;

import ai.djl.ndarray.NDArray;
import java.util.ArrayList;
import java.util.EnumMap;
import java.util.List;
import java.util.Map;
import java.util.function.IntFunction;
import org.djlx.collectives.ProcessGroup.Variant;
import org.djlx.collectives.spi.Backend;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation.Agreed;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.TensorInfo;

/**
 * Runs a collective on several tensors: as a batch, if the backend has batches, or as one operation
 * for the tensors of each element type. All ranks must pass the same types and shapes in the same
 * order; a hash of all of them takes part in the agreement on each operation.
 */
final class Coalescing {

    private static final OpType ALL_REDUCE = new OpType("allReduceCoalesced");
    private static final OpType ALL_GATHER = new OpType("allGatherCoalesced");
    private static final OpType REDUCE_SCATTER = new OpType("reduceScatterCoalesced");

    private Coalescing() {}

    // Infos are what is known of the tensors whose shapes are the same on all ranks. A rank whose
    // list has other types than another's has more operations or fewer: where the first is found to
    // differ, those behind it must not be taken for what the others call next.

    static Work allReduce(
            ProcessGroup group, List<NDArray> tensors, List<TensorInfo> infos, ReduceOp op) {
        Backend backend = group.state().backend();
        int hash = hash(infos);
        if (backend.batchesCollectives()) {
            Variant variant = new Variant(ALL_REDUCE, hash);
            return batch(group, tensors, i -> group.allReduce(variant, tensors.get(i), op));
        }
        List<Work> works = new ArrayList<>();
        synchronized (group.state().issueLock()) {
            for (Bucket bucket : buckets(infos)) {
                works.add(
                        group.issue(
                                ALL_REDUCE,
                                bucket.agreed(op, hash),
                                operation ->
                                        backend.allReduceCoalesced(
                                                operation.behind(works),
                                                bucket.pick(tensors),
                                                bucket.pick(infos),
                                                op)));
            }
        }
        return joined(works, tensors);
    }

    static Work allGather(
            ProcessGroup group,
            List<NDArray> outputs,
            List<NDArray> inputs,
            List<TensorInfo> infos) {
        Backend backend = group.state().backend();
        int hash = hash(infos);
        if (backend.batchesCollectives()) {
            Variant variant = new Variant(ALL_GATHER, hash);
            return batch(
                    group,
                    outputs,
                    i -> group.allGatherIntoTensor(variant, outputs.get(i), inputs.get(i)));
        }
        List<Work> works = new ArrayList<>();
        synchronized (group.state().issueLock()) {
            for (Bucket bucket : buckets(infos)) {
                works.add(
                        group.issue(
                                ALL_GATHER,
                                bucket.agreed(null, hash),
                                operation ->
                                        backend.allGatherCoalesced(
                                                operation.behind(works),
                                                bucket.pick(outputs),
                                                bucket.pick(inputs),
                                                bucket.pick(infos))));
            }
        }
        return joined(works, outputs);
    }

    static Work reduceScatter(
            ProcessGroup group,
            List<NDArray> outputs,
            List<NDArray> inputs,
            List<TensorInfo> infos,
            ReduceOp op) {
        Backend backend = group.state().backend();
        int hash = hash(infos);
        if (backend.batchesCollectives()) {
            Variant variant = new Variant(REDUCE_SCATTER, hash);
            return batch(
                    group,
                    outputs,
                    i -> group.reduceScatterTensor(variant, outputs.get(i), inputs.get(i), op));
        }
        List<Work> works = new ArrayList<>();
        synchronized (group.state().issueLock()) {
            for (Bucket bucket : buckets(infos)) {
                works.add(
                        group.issue(
                                REDUCE_SCATTER,
                                bucket.agreed(op, hash),
                                operation ->
                                        backend.reduceScatterCoalesced(
                                                operation.behind(works),
                                                bucket.pick(outputs),
                                                bucket.pick(inputs),
                                                bucket.pick(infos),
                                                op)));
            }
        }
        return joined(works, outputs);
    }

    /** One work is the whole: its result are the tensors of its type, which are all. */
    private static Work joined(List<Work> works, List<NDArray> result) {
        return works.size() == 1 ? works.get(0) : new CoalescedWork(works, result);
    }

    /** Issues an operation for each tensor; the ranks agree on the shapes of all with each. */
    private static Work batch(ProcessGroup group, List<NDArray> results, IntFunction<Work> issue) {
        Backend backend = group.state().backend();
        List<Work> works = new ArrayList<>();
        synchronized (group.state().issueLock()) {
            backend.startBatch();
            try {
                for (int i = 0; i < results.size(); i++) {
                    works.add(issue.apply(i));
                }
            } finally {
                backend.endBatch();
            }
        }
        return new CoalescedWork(works, results);
    }

    /** The tensors of one element type, those whose shape is the same on all ranks. */
    private static final class Bucket {

        private final ScalarType type;
        private final List<Integer> indices = new ArrayList<>();
        private long count; // elements

        Bucket(ScalarType type) {
            this.type = type;
        }

        void add(int index, TensorInfo info) {
            indices.add(index);
            count += info.count();
        }

        <T> List<T> pick(List<T> all) {
            return indices.size() == all.size() ? all : indices.stream().map(all::get).toList();
        }

        Agreed agreed(ReduceOp op, int hash) {
            return new Agreed(type, new long[] {count}, op, hash);
        }
    }

    private static List<Bucket> buckets(List<TensorInfo> infos) {
        Map<ScalarType, Bucket> buckets = new EnumMap<>(ScalarType.class);
        for (int i = 0; i < infos.size(); i++) {
            buckets.computeIfAbsent(infos.get(i).type(), Bucket::new).add(i, infos.get(i));
        }
        return List.copyOf(buckets.values());
    }

    /**
     * Hashes types and shapes. Every step is a bijection of the hash and of the word that it takes
     * in, whose bits it spreads over all of the hash: lists that differ in one word never collide
     * before the last step, others only by chance, once in 2^32.
     */
    private static int hash(List<TensorInfo> infos) {
        long hash = infos.size();
        for (TensorInfo info : infos) {
            hash = mix(hash ^ info.type().code());
            hash = mix(hash ^ info.sizes().length);
            for (long size : info.sizes()) {
                hash = mix(hash ^ size);
            }
        }
        return (int) (hash >>> 32);
    }

    /** The output function of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014). */
    private static long mix(long word) {
        long z = word + 0x9E3779B97F4A7C15L;
        z = (z ^ z >>> 30) * 0xBF58476D1CE4E5B9L;
        z = (z ^ z >>> 27) * 0x94D049BB133111EBL;
        return z ^ z >>> 31;
    }
}
