/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.function.IntFunction;
import org.djlx.nativeops.NativeMemory;
import org.djlx.nativeops.NoGradient;
import org.djlx.nativeops.ScalarType;
import org.djlx.nativeops.Torch;

/**
 * Runs a collective on several tensors at once, with any backend: as a batch if it can, or the
 * tensors of one element type are copied into one, and the result out of it. All ranks must pass
 * the same shapes; their hash takes part in the agreement.
 */
final class Coalescing {

    private static final OpType ALL_REDUCE = new OpType("allReduceCoalesced");
    private static final OpType ALL_GATHER = new OpType("allGatherCoalesced");
    private static final OpType REDUCE_SCATTER = new OpType("reduceScatterCoalesced");

    private Coalescing() {}

    static Work allReduce(ProcessGroup group, List<NDArray> tensors, ReduceOp op) {
        if (group.state().backend().batchesCollectives()) {
            return batch(
                    group,
                    tensors,
                    shapes -> i -> group.allReduce(ALL_REDUCE, tensors.get(i), op, shapes));
        }
        List<CoalescedWork.Part> parts = new ArrayList<>();
        for (Bucket bucket : buckets(tensors)) {
            Flat flat = new Flat(group, bucket, 1);
            flat.hold(bucket.pick(tensors));
            flat.copyIn(bucket.pick(tensors), 1);
            parts.add(
                    flat.run(
                            () -> group.allReduce(ALL_REDUCE, flat.buffer, op, bucket.shapes()),
                            () -> flat.copyOut(1)));
        }
        return new CoalescedWork(parts, tensors);
    }

    static Work allGather(ProcessGroup group, List<NDArray> outputs, List<NDArray> inputs) {
        int worldSize = group.worldSize();
        if (group.state().backend().batchesCollectives()) {
            return batch(
                    group,
                    outputs,
                    shapes ->
                            i ->
                                    group.allGatherIntoTensor(
                                            ALL_GATHER, outputs.get(i), inputs.get(i), shapes));
        }
        List<CoalescedWork.Part> parts = new ArrayList<>();
        for (Bucket bucket : buckets(inputs)) {
            Flat in = new Flat(group, bucket, 1);
            Flat out = new Flat(group, bucket, worldSize);
            in.copyIn(bucket.pick(inputs), 1);
            out.hold(bucket.pick(outputs));
            parts.add(
                    out.run(
                            () -> {
                                try (in) {
                                    return group.allGatherIntoTensor(
                                            ALL_GATHER, out.buffer, in.buffer, bucket.shapes());
                                }
                            },
                            () -> out.copyOut(worldSize)));
        }
        return new CoalescedWork(parts, outputs);
    }

    static Work reduceScatter(
            ProcessGroup group, List<NDArray> outputs, List<NDArray> inputs, ReduceOp op) {
        int worldSize = group.worldSize();
        if (group.state().backend().batchesCollectives()) {
            return batch(
                    group,
                    outputs,
                    shapes ->
                            i ->
                                    group.reduceScatterTensor(
                                            REDUCE_SCATTER,
                                            outputs.get(i),
                                            inputs.get(i),
                                            op,
                                            shapes));
        }
        List<CoalescedWork.Part> parts = new ArrayList<>();
        for (Bucket bucket : buckets(outputs)) {
            Flat in = new Flat(group, bucket, worldSize);
            Flat out = new Flat(group, bucket, 1);
            in.copyIn(bucket.pick(inputs), worldSize);
            out.hold(bucket.pick(outputs));
            parts.add(
                    out.run(
                            () -> {
                                try (in) {
                                    return group.reduceScatterTensor(
                                            REDUCE_SCATTER,
                                            out.buffer,
                                            in.buffer,
                                            op,
                                            bucket.shapes());
                                }
                            },
                            () -> out.copyOut(1)));
        }
        return new CoalescedWork(parts, outputs);
    }

    /** Issues an operation for each tensor; the ranks agree on the shapes of all with each. */
    private static Work batch(
            ProcessGroup group, List<NDArray> results, IntFunction<IntFunction<Work>> issue) {
        List<long[]> sizes = results.stream().map(Torch::sizes).toList();
        IntFunction<Work> issueOne = issue.apply(Arrays.deepHashCode(sizes.toArray()) | 1);
        Backend backend = group.state().backend();
        List<CoalescedWork.Part> parts = new ArrayList<>();
        synchronized (group.state().issueLock()) {
            backend.startBatch();
            try {
                for (int i = 0; i < results.size(); i++) {
                    parts.add(
                            new CoalescedWork.Part(
                                    issueOne.apply(i), CompletableFuture.completedStage(null)));
                }
            } finally {
                backend.endBatch();
            }
        }
        return new CoalescedWork(parts, results);
    }

    /** The tensors of one element type, of which each rank has one part or all. */
    private static final class Bucket {

        private final ScalarType type;
        private final List<Integer> indices = new ArrayList<>();
        private final List<long[]> sizes = new ArrayList<>(); // of one part
        private long count; // elements of one part of all

        Bucket(ScalarType type) {
            this.type = type;
        }

        void add(int index, long[] shape) {
            indices.add(index);
            sizes.add(shape);
            count += OperationChecks.count(shape);
        }

        List<NDArray> pick(List<NDArray> tensors) {
            return indices.stream().map(tensors::get).toList();
        }

        /** A number for the shapes, on which the ranks must agree; not 0. */
        int shapes() {
            return Arrays.deepHashCode(sizes.toArray()) | 1;
        }
    }

    private static List<Bucket> buckets(List<NDArray> tensors) {
        Map<ScalarType, Bucket> buckets = new LinkedHashMap<>();
        for (int i = 0; i < tensors.size(); i++) {
            ScalarType type = Torch.scalarType(tensors.get(i));
            buckets.computeIfAbsent(type, Bucket::new).add(i, Torch.sizes(tensors.get(i)));
        }
        return List.copyOf(buckets.values());
    }

    private interface Issue {
        Work issue();
    }

    /** One tensor for all of a bucket: {@code copies} rows, in each a part of every tensor. */
    private static final class Flat implements AutoCloseable {

        private final Bucket bucket;
        private final NDManager manager;
        private final NDArray buffer;
        private List<NDArray> results = List.of();

        Flat(ProcessGroup group, Bucket bucket, int copies) {
            this.bucket = bucket;
            manager = NDManager.newBaseManager(group.state().backend().device(), "PyTorch");
            buffer = Torch.empty(manager, new Shape(copies, bucket.count), bucket.type);
        }

        /** Keeps the tensors that get the results alive. */
        void hold(List<NDArray> tensors) {
            results = tensors.stream().map(tensor -> Torch.alias(manager, tensor)).toList();
        }

        void copyIn(List<NDArray> tensors, int copies) {
            NoGradient.run(() -> copy(tensors, copies, true));
        }

        void copyOut(int copies) {
            NoGradient.run(() -> copy(results, copies, false));
        }

        private void copy(List<NDArray> tensors, int copies, boolean in) {
            long offset = 0;
            for (NDArray tensor : tensors) {
                long[] sizes = Torch.sizes(tensor);
                long count = OperationChecks.count(sizes) / copies;
                // One tensor's parts: a column of the buffer.
                try (NDManager scope = manager.newSubManager();
                        NDArray column = column(scope, offset, copies, count)) {
                    if (in) {
                        Torch.copy(column, rows(scope, contiguous(scope, tensor), copies));
                    } else if (Torch.isContiguous(tensor)) {
                        Torch.copy(rows(scope, tensor, copies), column);
                    } else {
                        NDArray straight = Torch.empty(scope, new Shape(sizes), bucket.type);
                        Torch.copy(rows(scope, straight, copies), column);
                        Torch.copy(tensor, straight);
                    }
                }
                offset += count;
            }
        }

        private NDArray column(NDManager scope, long offset, int copies, long count) {
            return Torch.view(
                    scope,
                    memory(buffer),
                    offset * bucket.type.itemSize(),
                    new long[] {copies, count},
                    new long[] {bucket.count, 1},
                    bucket.type);
        }

        private NDArray contiguous(NDManager scope, NDArray tensor) {
            if (Torch.isContiguous(tensor)) {
                return tensor;
            }
            NDArray straight = Torch.empty(scope, new Shape(Torch.sizes(tensor)), bucket.type);
            Torch.copy(straight, tensor);
            return straight;
        }

        private NDArray rows(NDManager scope, NDArray tensor, int copies) {
            long count = OperationChecks.count(Torch.sizes(tensor)) / copies;
            return Torch.view(scope, memory(tensor), 0, new Shape(copies, count), bucket.type);
        }

        private NativeMemory memory(NDArray tensor) {
            long bytes = OperationChecks.count(Torch.sizes(tensor)) * bucket.type.itemSize();
            return new NativeMemory(
                    Torch.dataPointer(tensor), bytes, Torch.device(tensor), () -> {});
        }

        /** Issues the operation; when it has ended, copies the results and frees the buffer. */
        CoalescedWork.Part run(Issue operation, Runnable copyResults) {
            Work work;
            try {
                work = operation.issue();
            } catch (RuntimeException e) {
                close();
                throw e;
            }
            CompletionStage<Void> end =
                    work.getFuture()
                            .handle(
                                    (result, failure) -> {
                                        try {
                                            if (failure == null) {
                                                copyResults.run();
                                            }
                                        } finally {
                                            close();
                                        }
                                        return null;
                                    });
            return new CoalescedWork.Part(work, end);
        }

        @Override
        public void close() {
            manager.close();
        }
    }
}
