// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.pipelined;

import ai.djl.engine.EngineException;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import java.util.function.Consumer;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.Work;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation;
import org.djlx.collectives.spi.Operation.Agreed;
import org.djlx.fusedops.ChunkProducer;
import org.djlx.fusedops.ShardConsumer;
import org.djlx.fusedops.cost.Path;
import org.djlx.fusedops.internal.path.Axes;
import org.djlx.fusedops.internal.path.Fallbacks;
import org.djlx.fusedops.internal.path.GroupPlans;
import org.djlx.fusedops.internal.path.OperandChecks;
import org.djlx.fusedops.internal.path.OperationScope;
import org.djlx.fusedops.internal.path.Pipeline;
import org.djlx.fusedops.internal.path.Slots;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.TensorInfo;
import org.djlx.nativeops.torch.Torch;

/** One call of a pipeline with a caller's computation: all-gather, or all-to-all. */
public final class CallerPipeline {

    public static final OpType ALL_GATHER = new OpType("pipelinedAllGather");
    public static final OpType ALL_TO_ALL = new OpType("pipelinedProduceAndAllToAll");

    private final OpType type;
    private final ProcessGroup group;
    private final GroupPlans plans;
    private final OperationScope scope;
    private final ScalarType elements;
    private final Shape part; // a shard or a chunk
    private final long partBytes;
    private boolean issued; // the operation closes the arrays
    private Throwable failure; // the caller's RuntimeException or Error; null if there is none

    private CallerPipeline(
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
        checks.checkDevice(role, array, group.device());
        return info;
    }

    public static void allGather(NDArray shard, ShardConsumer consumer, ProcessGroup group) {
        OperandChecks checks = new OperandChecks(ALL_GATHER.toString());
        checks.checkNotNull("the consumer", consumer);
        TensorInfo info = check(checks, "shard", shard, group);
        Shape shape = new Shape(info.sizes());
        CallerPipeline call =
                new CallerPipeline(ALL_GATHER, group, info.type(), shape, info.byteSize());
        call.run(() -> call.allGather(shard, consumer));
        call.rethrow();
    }

    private void allGather(NDArray shard, ShardConsumer consumer) {
        int ranks = group.worldSize();
        NDArray own = scope.contiguous(scope.alias(shard), elements);
        if (fallsBack()) {
            NDArray all = scope.empty(Axes.stacked(ranks, part), elements);
            GroupPlans.complete(group, group.allGatherIntoTensor(all, own));
            long first = Torch.dataPointer(all);
            for (int step = 0; step < ranks; step++) {
                int rank = (group.rank() + step) % ranks;
                consume(consumer, rank, first + rank * partBytes);
            }
            return;
        }
        Slots slots = slots();
        NDArray all = slots.hasRounds() ? scope.empty(Axes.stacked(ranks, part), elements) : own;
        long from = Torch.dataPointer(own);
        long to = Torch.dataPointer(all);
        Pipeline.ShardConsumer each = (stream, rank, address) -> consume(consumer, rank, address);
        execute(
                operation ->
                        plans.pipeline(group)
                                .gatherAndConsume(
                                        operation, slots, from, partBytes, to, each, own, all));
    }

    /** Calls a consumer, unless it has thrown. The exchange goes on: peers need the shard. */
    private void consume(ShardConsumer consumer, int rank, long address) {
        if (failure != null) {
            return;
        }
        try (NDArray shard = view(address)) {
            NoGradient.run(() -> consumer.consume(shard, rank));
        } catch (RuntimeException | Error e) {
            failure = e;
        }
    }

    private void rethrow() {
        if (failure instanceof Error error) {
            throw error;
        }
        if (failure != null) {
            throw (RuntimeException) failure;
        }
    }

    public static void allToAll(ChunkProducer producer, NDArray output, ProcessGroup group) {
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
        CallerPipeline call =
                new CallerPipeline(ALL_TO_ALL, group, info.type(), chunk, info.byteSize() / ranks);
        call.run(() -> call.allToAll(producer, output));
    }

    private void allToAll(ChunkProducer producer, NDArray output) {
        int ranks = group.worldSize();
        NDArray out = scope.alias(output);
        if (fallsBack()) {
            NDArray chunks = scope.empty(out.getShape(), elements);
            long first = Torch.dataPointer(chunks);
            try {
                for (int step = 1; step <= ranks; step++) {
                    int rank = (group.rank() + step) % ranks;
                    produce(producer, rank, first + rank * partBytes);
                }
            } catch (RuntimeException | Error e) {
                failure = e;
                fail();
            }
            GroupPlans.complete(group, group.allToAllSingle(out, chunks));
            return;
        }
        Slots slots = slots();
        NDArray received =
                slots.hasRounds() ? scope.empty(slots.receivedShape(), ScalarType.UINT8) : out;
        NDArray[] used = new NDArray[2 + Pipeline.stagingBuffers(ranks)];
        used[0] = out;
        used[1] = received;
        long[] staging = new long[used.length - 2];
        for (int i = 0; i < staging.length; i++) {
            used[2 + i] = scope.empty(part, elements);
            staging[i] = Torch.dataPointer(used[2 + i]);
        }
        long at = Torch.dataPointer(received);
        long place = Torch.dataPointer(out);
        Pipeline.PartProducer each = (rank, address) -> produce(producer, rank, address);
        Pipeline.PartReducer unpack =
                (stream, first, distance) -> {
                    for (int rank = 0; rank < ranks; rank++) {
                        stream.copy(place + rank * partBytes, first + rank * distance, partBytes);
                    }
                };
        execute(
                operation ->
                        plans.pipeline(group)
                                .produceAndScatter(
                                        operation, slots, staging, partBytes, at, each, unpack,
                                        used));
    }

    /** Breaks the group, because other ranks may wait in their all-to-all. */
    private void fail() {
        try {
            execute(operation -> rethrow());
        } catch (UnsupportedOperationException e) {
            rethrow(); // The backend runs no operations of a library: the others time out.
        }
    }

    private void produce(ChunkProducer producer, int rank, long address) {
        try (NDArray chunk = view(address)) {
            NoGradient.run(() -> producer.produce(chunk, rank));
        }
    }

    private NDArray view(long address) {
        return scope.view(address, part, elements, partBytes);
    }

    private Slots slots() {
        return new Slots(group.requireP2pBuffers(), partBytes);
    }

    /** Counts the call, and returns whether the group's own collective runs. */
    private boolean fallsBack() {
        return Fallbacks.fallsBack(type, group, partBytes);
    }

    /** Runs the call; closes its arrays when no operation uses them. */
    private void run(Runnable call) {
        try {
            call.run();
        } catch (EngineException | VirtualMachineError e) {
            GroupPlans.failed(group, e);
            throw e;
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
        GroupPlans.complete(group, work);
    }
}
