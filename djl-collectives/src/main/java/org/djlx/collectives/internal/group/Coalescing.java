// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.group;

import ai.djl.ndarray.NDArray;
import java.util.ArrayList;
import java.util.EnumMap;
import java.util.List;
import java.util.Map;
import java.util.function.BiFunction;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.collectives.spi.Backend;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation;
import org.djlx.collectives.spi.Operation.Agreed;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.TensorInfo;
import org.djlx.nativeops.torch.Torch;

/**
 * Runs a collective on several tensors: as one batch if the backend {@linkplain
 * Backend#batchesCollectives batches collectives}, otherwise as one operation per element type. All
 * ranks must pass the same types and shapes in the same order. Every operation carries a hash of
 * all types and shapes, and the ranks compare the hashes.
 */
final class Coalescing {

    private static final OpType ALL_REDUCE = new OpType("allReduceCoalesced");
    private static final OpType ALL_GATHER = new OpType("allGatherCoalesced");
    private static final OpType REDUCE_SCATTER = new OpType("reduceScatterCoalesced");
    private static final OpType ALL_GATHER_UNEVEN = new OpType("allGatherUneven");
    private static final OpType REDUCE_SCATTER_UNEVEN = new OpType("reduceScatterUneven");

    private Coalescing() {}

    // A TensorInfo describes the tensor whose type and shape must be the same on all ranks: the
    // contribution of an all-reduce, the input of an all-gather, the output of a reduce-scatter.

    static Work allReduce(
            RankGroup group, List<NDArray> tensors, List<TensorInfo> infos, ReduceOp op) {
        Backend backend = group.state().backend();
        Call call = new Call(group, ALL_REDUCE, infos, op, tensors);
        return backend.batchesCollectives()
                ? call.batch((operation, i) -> backend.allReduce(operation, tensors.get(i), op))
                : call.buckets(
                        (operation, bucket) ->
                                backend.allReduceCoalesced(
                                        operation, bucket.pick(tensors), bucket.pick(infos), op));
    }

    static Work allGather(
            RankGroup group, List<NDArray> outputs, List<NDArray> inputs, List<TensorInfo> infos) {
        Backend backend = group.state().backend();
        Call call = new Call(group, ALL_GATHER, infos, null, outputs);
        return backend.batchesCollectives()
                ? call.batch(
                        (operation, i) ->
                                backend.allGather(
                                        operation, List.of(outputs.get(i)), inputs.get(i)))
                : call.buckets(
                        (operation, bucket) ->
                                backend.allGatherCoalesced(
                                        operation,
                                        bucket.pick(outputs),
                                        bucket.pick(inputs),
                                        bucket.pick(infos)));
    }

    static Work reduceScatter(
            RankGroup group,
            List<NDArray> outputs,
            List<NDArray> inputs,
            List<TensorInfo> infos,
            ReduceOp op) {
        Backend backend = group.state().backend();
        Call call = new Call(group, REDUCE_SCATTER, infos, op, outputs);
        return backend.batchesCollectives()
                ? call.batch(
                        (operation, i) ->
                                backend.reduceScatter(
                                        operation, outputs.get(i), List.of(inputs.get(i)), op))
                : call.buckets(
                        (operation, bucket) ->
                                backend.reduceScatterCoalesced(
                                        operation,
                                        bucket.pick(outputs),
                                        bucket.pick(inputs),
                                        bucket.pick(infos),
                                        op));
    }

    /** Gathers tensors whose shapes differ between ranks: a broadcast by each rank. */
    static Work allGatherUneven(
            RankGroup group, List<NDArray> outputs, NDArray input, List<TensorInfo> infos) {
        Backend backend = group.state().backend();
        backend.checkSupported(OpType.BROADCAST);
        Torch.copy(outputs.get(group.rank()), input);
        return new Call(group, ALL_GATHER_UNEVEN, infos, null, outputs)
                .forEach(
                        (operation, root) -> backend.broadcast(operation, outputs.get(root), root));
    }

    /**
     * Reduces tensors whose shapes differ between ranks: a reduction to each rank. The infos are of
     * the inputs; at this rank's place, of the output.
     */
    static Work reduceScatterUneven(
            RankGroup group,
            NDArray output,
            List<NDArray> inputs,
            List<TensorInfo> infos,
            ReduceOp op) {
        Backend backend = group.state().backend();
        backend.checkSupported(OpType.REDUCE);
        Torch.copy(output, inputs.get(group.rank()));
        return new Call(group, REDUCE_SCATTER_UNEVEN, infos, op, List.of(output))
                .forEach(
                        (operation, root) -> {
                            NDArray tensor = root == group.rank() ? output : inputs.get(root);
                            return backend.reduce(operation, tensor, root, op);
                        });
    }

    private record Call(
            RankGroup group,
            OpType type,
            List<TensorInfo> infos,
            ReduceOp op,
            List<NDArray> result) {

        /** Issues one operation per tensor; each carries the hash of all types and shapes. */
        Work forEach(BiFunction<Operation, Integer, Work> backendCall) {
            Backend backend = group.state().backend();
            return backend.batchesCollectives() ? batch(backendCall) : issueEach(backendCall);
        }

        Work batch(BiFunction<Operation, Integer, Work> backendCall) {
            Backend backend = group.state().backend();
            synchronized (group.state().issueLock()) {
                backend.startBatch();
                try {
                    return issueEach(backendCall);
                } finally {
                    backend.endBatch();
                }
            }
        }

        private Work issueEach(BiFunction<Operation, Integer, Work> backendCall) {
            int hash = hash(infos);
            List<Work> works = new ArrayList<>();
            synchronized (group.state().issueLock()) {
                for (int i = 0; i < infos.size(); i++) {
                    int index = i;
                    works.add(
                            group.issue(
                                    type,
                                    infos.get(i),
                                    op,
                                    hash,
                                    operation -> backendCall.apply(operation.after(works), index)));
                }
            }
            return new CoalescedWork(works, result);
        }

        /**
         * Issues one operation per element type. Ranks with different element types issue different
         * numbers of operations, so a mismatch in one operation cancels the operations after it.
         */
        Work buckets(BiFunction<Operation, Bucket, Work> backendCall) {
            int hash = hash(infos);
            List<Work> works = new ArrayList<>();
            synchronized (group.state().issueLock()) {
                for (Bucket bucket : Coalescing.buckets(infos)) {
                    works.add(
                            group.issue(
                                    type,
                                    bucket.agreed(op, hash),
                                    operation ->
                                            backendCall.apply(operation.after(works), bucket)));
                }
            }
            return works.size() == 1 ? works.get(0) : new CoalescedWork(works, result);
        }
    }

    /** The tensors of one element type. */
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
     * Hashes types and shapes to 32 bits. Each step is a bijection in the hash and in the added
     * word, so two lists that differ in one word have different 64-bit hashes. Otherwise the chance
     * of a collision is 2^-32.
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
