// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import java.util.function.Consumer;
import java.util.stream.IntStream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.Work;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation;
import org.djlx.collectives.spi.Operation.Agreed;
import org.djlx.fusedops.cost.Path;
import org.djlx.fusedops.internal.Pipeline;
import org.djlx.fusedops.internal.Slots;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.TensorInfo;
import org.djlx.nativeops.torch.Torch;

/** One call of a pipeline with a caller's computation: all-gather, or all-to-all. */
final class PublicPipelines {

    static final OpType ALL_GATHER = new OpType("pipelinedAllGather");
    static final OpType ALL_TO_ALL = new OpType("pipelinedProduceAndAllToAll");
    private static final int MAX_STAGING = 2; // one is computed while the other is sent

    private final OpType type;
    private final ProcessGroup group;
    private final GroupPlans plans;
    private final OperationScope scope;
    private final ScalarType elements;
    private final Shape part; // a shard or a chunk
    private final long partBytes;
    private boolean issued; // the operation closes the arrays

    private PublicPipelines(
            OpType type, ProcessGroup group, ScalarType elements, Shape part, long partBytes) {
        this.type = type;
        this.group = group;
        this.elements = elements;
        this.part = part;
        this.partBytes = partBytes;
        plans = GroupPlans.of(group);
        scope = plans.scope();
    }

    private static TensorInfo check(
            OperandChecks checks, String role, NDArray array, ProcessGroup group) {
        checks.checkNotNull("the group", group);
        TensorInfo info = checks.operand(role, array);
        if (checks.recording() != null) {
            throw checks.wrong(
                    "%s requires a gradient, but the operator has none: pass it without a gradient",
                    role);
        }
        if (!array.getDevice().equals(group.device())) {
            throw checks.wrong(
                    "%s is on %s, but the group works on %s: copy it there",
                    role, array.getDevice(), group.device());
        }
        return info;
    }

    /** See {@link FusedOps#pipelinedAllGather}. */
    static void allGather(NDArray shard, ShardConsumer consumer, ProcessGroup group) {
        OperandChecks checks = new OperandChecks(ALL_GATHER.toString());
        checks.checkNotNull("the consumer", consumer);
        TensorInfo info = check(checks, "shard", shard, group);
        new PublicPipelines(
                        ALL_GATHER, group, info.type(), new Shape(info.sizes()), info.byteSize())
                .allGather(shard, consumer);
    }

    private void allGather(NDArray shard, ShardConsumer consumer) {
        Failure failure = new Failure();
        run(
                () -> {
                    NDArray own = scope.contiguous(scope.alias(shard), elements);
                    if (fallsBack()) {
                        NDArray all = scope.empty(Axes.stacked(group.worldSize(), part), elements);
                        FusedOps.complete(group, group.allGatherIntoTensor(all, own));
                        long first = Torch.dataPointer(all);
                        for (int step = 0; step < group.worldSize(); step++) {
                            int rank = (group.rank() + step) % group.worldSize();
                            consume(consumer, rank, first + rank * partBytes, failure);
                        }
                        return;
                    }
                    Slots slots = new Slots(group.p2pBuffers().orElseThrow(), partBytes);
                    NDArray all =
                            slots.hasRounds()
                                    ? scope.empty(Axes.stacked(group.worldSize(), part), elements)
                                    : own;
                    execute(
                            operation ->
                                    pipeline()
                                            .gatherAndConsume(
                                                    operation,
                                                    slots,
                                                    Torch.dataPointer(own),
                                                    partBytes,
                                                    Torch.dataPointer(all),
                                                    (stream, rank, address) ->
                                                            consume(
                                                                    consumer, rank, address,
                                                                    failure),
                                                    own,
                                                    all));
                });
        failure.rethrow();
    }

    /** The first failure of a consumer. The exchange goes on: other ranks need the shard. */
    private static final class Failure {

        private RuntimeException exception;
        private Error error;

        boolean isEmpty() {
            return exception == null && error == null;
        }

        void rethrow() {
            if (error != null) {
                throw error;
            }
            if (exception != null) {
                throw exception;
            }
        }
    }

    private void consume(ShardConsumer consumer, int rank, long address, Failure failure) {
        if (!failure.isEmpty()) {
            return;
        }
        try (NDArray shard = view(address)) {
            NoGradient.run(() -> consumer.consume(shard, rank));
        } catch (RuntimeException e) {
            failure.exception = e;
        } catch (Error e) {
            failure.error = e;
        }
    }

    /** See {@link FusedOps#pipelinedProduceAndAllToAll}. */
    static void allToAll(ChunkProducer producer, NDArray output, ProcessGroup group) {
        OperandChecks checks = new OperandChecks(ALL_TO_ALL.toString());
        checks.checkNotNull("the producer", producer);
        TensorInfo info = check(checks, "output", output, group);
        Shape shape = new Shape(info.sizes());
        int ranks = group.worldSize();
        if (shape.dimension() == 0 || shape.get(0) % ranks != 0) {
            throw checks.wrong(
                    "output has shape %s, but its first size must be a multiple of the world size,"
                            + " %d",
                    shape, ranks);
        }
        if (!info.isContiguous()) {
            throw checks.wrong("output is not contiguous: pass a contiguous array");
        }
        Shape chunk = Axes.with(shape, 0, shape.get(0) / ranks);
        new PublicPipelines(ALL_TO_ALL, group, info.type(), chunk, info.byteSize() / ranks)
                .allToAll(producer, output);
    }

    private void allToAll(ChunkProducer producer, NDArray output) {
        run(
                () -> {
                    NDArray out = scope.alias(output);
                    long first = Torch.dataPointer(out);
                    int ranks = group.worldSize();
                    if (fallsBack()) {
                        NDArray chunks = scope.empty(out.getShape(), elements);
                        long ofRank0 = Torch.dataPointer(chunks);
                        for (int step = 1; step <= ranks; step++) {
                            int rank = (group.rank() + step) % ranks;
                            produce(producer, rank, ofRank0 + rank * partBytes);
                        }
                        FusedOps.complete(group, group.allToAllSingle(out, chunks));
                        return;
                    }
                    Slots slots = new Slots(group.p2pBuffers().orElseThrow(), partBytes);
                    NDArray received =
                            slots.hasRounds()
                                    ? scope.empty(slots.receivedShape(), ScalarType.UINT8)
                                    : out;
                    NDArray[] used = new NDArray[2 + Math.min(MAX_STAGING, ranks - 1)];
                    used[0] = out;
                    used[1] = received;
                    for (int i = 2; i < used.length; i++) {
                        used[i] = scope.empty(part, elements);
                    }
                    long[] staging =
                            IntStream.range(2, used.length)
                                    .mapToLong(i -> Torch.dataPointer(used[i]))
                                    .toArray();
                    execute(
                            operation ->
                                    pipeline()
                                            .produceAndScatter(
                                                    operation,
                                                    slots,
                                                    staging,
                                                    partBytes,
                                                    Torch.dataPointer(received),
                                                    (rank, address) ->
                                                            produce(producer, rank, address),
                                                    (stream, from, distance) -> {
                                                        for (int rank = 0; rank < ranks; rank++) {
                                                            stream.copy(
                                                                    first + rank * partBytes,
                                                                    from + rank * distance,
                                                                    partBytes);
                                                        }
                                                    },
                                                    used));
                });
    }

    private void produce(ChunkProducer producer, int rank, long address) {
        try (NDArray chunk = view(address)) {
            NoGradient.run(() -> producer.produce(chunk, rank));
        }
    }

    /** Returns a view of a shard or chunk. */
    private NDArray view(long address) {
        return scope.view(address, part, elements, partBytes);
    }

    private Pipeline pipeline() {
        return plans.pipeline(group);
    }

    /** Counts the call, and returns whether the group's own collective runs. */
    private boolean fallsBack() {
        return LowContention.fallsBack(type, group, partBytes);
    }

    /** Runs the call; closes its arrays when no operation uses them. */
    private void run(Runnable call) {
        try {
            call.run();
        } finally {
            if (!issued) {
                scope.close();
            }
        }
    }

    private void execute(Consumer<Operation> body) {
        Work work =
                group.execute(
                        type,
                        new Agreed(elements, part.getShape(), null, 0),
                        operation -> {
                            operation.setAlgorithm(Path.PIPELINED.toString());
                            body.accept(operation);
                        });
        issued = true;
        scope.closeAfter(work);
        FusedOps.complete(group, work);
    }
}
