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
import java.util.function.Supplier;
import org.djlx.collectives.ProcessGroup.Variant;
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
                    shapes -> {
                        Variant variant = new Variant(ALL_REDUCE, shapes, null);
                        return i -> group.allReduce(variant, tensors.get(i), op);
                    });
        }
        List<CoalescedWork.Part> parts = new ArrayList<>();
        for (Bucket bucket : buckets(tensors)) {
            Flat flat = new Flat(group, bucket, 1, tensors);
            Variant variant = new Variant(ALL_REDUCE, bucket.shapes(), flat::copyIn);
            parts.add(run(() -> group.allReduce(variant, flat.buffer, op), flat, flat));
        }
        return new CoalescedWork(parts, tensors);
    }

    static Work allGather(ProcessGroup group, List<NDArray> outputs, List<NDArray> inputs) {
        int worldSize = group.worldSize();
        if (group.state().backend().batchesCollectives()) {
            return batch(
                    group,
                    outputs,
                    shapes -> {
                        Variant variant = new Variant(ALL_GATHER, shapes, null);
                        return i ->
                                group.allGatherIntoTensor(variant, outputs.get(i), inputs.get(i));
                    });
        }
        List<CoalescedWork.Part> parts = new ArrayList<>();
        for (Bucket bucket : buckets(inputs)) {
            Flat in = new Flat(group, bucket, 1, inputs);
            Flat out = new Flat(group, bucket, worldSize, outputs);
            Variant variant = new Variant(ALL_GATHER, bucket.shapes(), in::copyIn);
            parts.add(
                    run(() -> group.allGatherIntoTensor(variant, out.buffer, in.buffer), in, out));
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
                    shapes -> {
                        Variant variant = new Variant(REDUCE_SCATTER, shapes, null);
                        return i ->
                                group.reduceScatterTensor(
                                        variant, outputs.get(i), inputs.get(i), op);
                    });
        }
        List<CoalescedWork.Part> parts = new ArrayList<>();
        for (Bucket bucket : buckets(outputs)) {
            Flat in = new Flat(group, bucket, worldSize, inputs);
            Flat out = new Flat(group, bucket, 1, outputs);
            Variant variant = new Variant(REDUCE_SCATTER, bucket.shapes(), in::copyIn);
            parts.add(
                    run(
                            () -> group.reduceScatterTensor(variant, out.buffer, in.buffer, op),
                            in,
                            out));
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

    /** Issues an operation; when it has ended, copies the results and frees the buffers. */
    private static CoalescedWork.Part run(Supplier<Work> operation, Flat in, Flat out) {
        Work work;
        try {
            work = operation.get();
        } catch (RuntimeException e) {
            in.close();
            out.close();
            throw e;
        }
        CompletionStage<Void> end =
                work.getFuture()
                        .handle(
                                (result, failure) -> {
                                    try (in;
                                            out) {
                                        if (failure == null) {
                                            out.copyOut();
                                        }
                                    }
                                    return null;
                                });
        return new CoalescedWork.Part(work, end);
    }

    /** One tensor for all of a bucket: {@code copies} rows, in each a part of every tensor. */
    private static final class Flat implements AutoCloseable {

        private final Bucket bucket;
        private final int copies;
        private final NDManager manager;
        private final NDArray buffer;
        private final List<NDArray> tensors; // held, as the caller may close them meanwhile

        Flat(ProcessGroup group, Bucket bucket, int copies, List<NDArray> all) {
            this.bucket = bucket;
            this.copies = copies;
            manager = NDManager.newBaseManager(group.state().backend().device(), "PyTorch");
            buffer = Torch.empty(manager, new Shape(copies, bucket.count), bucket.type);
            tensors =
                    bucket.pick(all).stream().map(tensor -> Torch.alias(manager, tensor)).toList();
        }

        /** To be called when the operation begins: one before may write the tensors. */
        void copyIn() {
            NoGradient.run(() -> copy(true));
        }

        void copyOut() {
            NoGradient.run(() -> copy(false));
        }

        private void copy(boolean in) {
            long offset = 0;
            for (NDArray tensor : tensors) {
                long[] sizes = Torch.sizes(tensor);
                long count = OperationChecks.count(sizes) / copies;
                // One tensor's parts: a column of the buffer.
                try (NDManager scope = manager.newSubManager();
                        NDArray column = column(scope, offset, count)) {
                    if (in) {
                        Torch.copy(column, rows(scope, contiguous(scope, tensor)));
                    } else if (Torch.isContiguous(tensor)) {
                        Torch.copy(rows(scope, tensor), column);
                    } else {
                        NDArray straight = Torch.empty(scope, new Shape(sizes), bucket.type);
                        Torch.copy(rows(scope, straight), column);
                        Torch.copy(tensor, straight);
                    }
                }
                offset += count;
            }
        }

        private NDArray column(NDManager scope, long offset, long count) {
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

        private NDArray rows(NDManager scope, NDArray tensor) {
            long count = OperationChecks.count(Torch.sizes(tensor)) / copies;
            return Torch.view(scope, memory(tensor), 0, new Shape(copies, count), bucket.type);
        }

        private NativeMemory memory(NDArray tensor) {
            long bytes = OperationChecks.count(Torch.sizes(tensor)) * bucket.type.itemSize();
            return new NativeMemory(
                    Torch.dataPointer(tensor), bytes, Torch.device(tensor), () -> {});
        }

        @Override
        public void close() {
            manager.close();
        }
    }
}
