// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.spi;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.Queue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.ContractCases;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.collectives.internal.shm.ShmBackendFactory;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Optional methods of a backend for sub-groups and coalesced operations. */
@Timeout(60)
class BackendHooksTest {

    private static final BackendFactory SHM = new ShmBackendFactory();

    private volatile Boolean announces; // what barriers do before they fail; null if they work
    private final Queue<String> calls = new ConcurrentLinkedQueue<>();
    private final CountDownLatch waits = new CountDownLatch(1);
    private final CountDownLatch stopped = new CountDownLatch(1);

    /** Works by {@code shm}, splits and batches by itself, and writes down that it does. */
    private final class Recording extends Backend {

        private final Backend shm;
        private final int rank;
        private final int worldSize;

        Recording(GroupContext context) {
            shm = SHM.create(context);
            rank = context.rank();
            worldSize = context.worldSize();
        }

        @Override
        public String name() {
            return "recording";
        }

        @Override
        public Support support() {
            return shm.support();
        }

        @Override
        public Device device() {
            return shm.device();
        }

        @Override
        public Optional<Backend> split(GroupContext context, int color, List<Integer> members) {
            calls.add("split " + rank + " " + color + " " + members + (context == null));
            return context == null ? Optional.empty() : Optional.of(new Recording(context));
        }

        @Override
        public void startBatch() {
            calls.add("start " + rank);
        }

        @Override
        public void endBatch() {
            calls.add("end " + rank);
        }

        @Override
        public Work allReduce(Operation operation, NDArray tensor, ReduceOp op) {
            calls.add("allReduce " + rank);
            return shm.allReduce(operation, tensor, op);
        }

        @Override
        public Work allGather(Operation operation, List<NDArray> outputs, NDArray input) {
            return shm.allGather(operation, outputs, input);
        }

        @Override
        public Work reduceScatter(
                Operation operation, NDArray output, List<NDArray> inputs, ReduceOp op) {
            return shm.reduceScatter(operation, output, inputs, op);
        }

        @Override
        public Work barrier(Operation operation) {
            if (announces == null) {
                return shm.barrier(operation);
            }
            calls.add("barrier " + operation.sequence());
            if (announces) {
                operation.announced();
            }
            throw new IllegalStateException("cannot enqueue");
        }

        /** Waits for other ranks in the call. */
        @Override
        public Work send(Operation operation, NDArray tensor, int destination, int tag) {
            waits.countDown();
            try {
                stopped.await();
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
            throw new CollectiveException("nobody waits any more");
        }

        @Override
        public void stopWaiting() {
            stopped.countDown();
        }

        @Override
        public void endCalls() {
            calls.add("endCalls " + rank + " of " + worldSize);
        }

        @Override
        public void drain() {
            calls.add("drain " + rank + " of " + worldSize);
        }

        @Override
        public void close() {
            calls.add("close " + rank + " of " + worldSize);
            shm.close();
        }
    }

    @BeforeEach
    void register() {
        Backends.register(
                "recording",
                new BackendFactory() {
                    @Override
                    public String name() {
                        return "recording";
                    }

                    @Override
                    public Support support() {
                        return SHM.support();
                    }

                    @Override
                    public Backend create(GroupContext context) {
                        calls.add("create " + context.rank());
                        return new Recording(context);
                    }
                });
    }

    private void run(ContractCases.Case body) {
        List<ProcessGroup> groups =
                ProcessGroups.local("recording", 3, new BackendOptions(Duration.ofSeconds(30)));
        calls.clear();
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        ContractCases.run(body, group);
                        return null;
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    private static void assertWorks(ProcessGroup group, NDManager manager) {
        if (group.isMember()) {
            NDArray tensor = manager.ones(new Shape(1));
            group.allReduce(tensor, ReduceOp.SUM).await();
            assertEquals(group.worldSize(), tensor.toFloatArray()[0]);
        }
    }

    private void assertOnce(String call) {
        assertEquals(1, calls.stream().filter(call::equals).count(), () -> call + ": " + calls);
    }

    @Test
    @Timeout(60)
    void destroyEndsACallThatWaits() throws InterruptedException {
        List<ProcessGroup> groups =
                ProcessGroups.local("recording", 2, new BackendOptions(Duration.ofSeconds(30)));
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            NDArray tensor = manager.ones(new Shape(1));
            CompletableFuture<Work> call =
                    CompletableFuture.supplyAsync(
                            () -> groups.get(0).send(tensor, 1, 0),
                            task -> new Thread(task).start());
            waits.await();
            groups.get(0).destroy();
            CompletionException e = assertThrows(CompletionException.class, call::join);
            assertEquals("nobody waits any more", e.getCause().getMessage());
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    /** The end of calls of all groups is announced before waiting for operations of one. */
    @Test
    void destroyEndsCallsThenDrainsThenCloses() {
        List<ProcessGroup> groups =
                ProcessGroups.local("recording", 2, new BackendOptions(Duration.ofSeconds(30)));
        try {
            ProcessGroups.run(groups, group -> group.split(group.rank(), 0));
            calls.clear();
            groups.get(1).destroy();
            assertEquals(
                    List.of(
                            "endCalls 0 of 1",
                            "endCalls 1 of 2",
                            "drain 0 of 1",
                            "drain 1 of 2",
                            "close 0 of 1",
                            "close 1 of 2"),
                    List.copyOf(calls));
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    /** Otherwise this rank's next call would have the number of the others' call before. */
    @Test
    void announcedCallConsumesItsSequenceNumber() {
        List<ProcessGroup> groups =
                ProcessGroups.local("recording", 2, new BackendOptions(Duration.ofSeconds(30)));
        try {
            calls.clear();
            for (boolean announced : new boolean[] {true, false, false}) {
                announces = announced;
                assertThrows(IllegalStateException.class, groups.get(0)::barrier);
            }
            assertEquals(List.of("barrier 1", "barrier 2", "barrier 2"), List.copyOf(calls));
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    @Test
    void newGroupIsSplitOffOnAllRanks() {
        run((group, manager) -> assertWorks(group.newGroup(List.of(0, 2)), manager));
        assertOnce("split 0 0 [0, 2]false");
        assertOnce("split 1 0 [0, 2]true");
        assertOnce("split 2 0 [0, 2]false");
        assertFalse(calls.stream().anyMatch(call -> call.startsWith("create")), calls::toString);
    }

    @Test
    void splitKeepsColorsAndOrder() {
        run(
                (group, manager) -> {
                    int color = group.rank() == 1 ? -1 : 7;
                    assertWorks(group.split(color, -group.rank()), manager);
                });
        assertOnce("split 0 7 [2, 0]false");
        assertOnce("split 1 0 []true");
        assertOnce("split 2 7 [2, 0]false");
    }

    @Test
    void coalescedOperationsAreBatches() {
        run(
                (group, manager) -> {
                    List<NDArray> tensors =
                            List.of(manager.ones(new Shape(3)), manager.full(new Shape(2, 2), 2f));
                    Work work = group.allReduceCoalesced(tensors, ReduceOp.SUM);
                    work.await();
                    assertTrue(work.isSuccess());
                    assertEquals(tensors, work.result());
                    assertArrayEquals(new float[] {3, 3, 3}, tensors.get(0).toFloatArray());
                    assertArrayEquals(new float[] {6, 6, 6, 6}, tensors.get(1).toFloatArray());
                    NDArray gathered = manager.zeros(new Shape(9));
                    group.allGatherCoalesced(List.of(gathered), List.of(tensors.get(0))).await();
                    assertEquals(3, gathered.toFloatArray()[8]);
                    NDArray part = manager.zeros(new Shape(3));
                    group.reduceScatterCoalesced(List.of(part), List.of(gathered), ReduceOp.SUM)
                            .await();
                    assertEquals(9, part.toFloatArray()[2]);
                });
        List<String> first = calls.stream().filter(call -> call.endsWith(" 1")).toList();
        assertEquals(
                List.of("start 1", "allReduce 1", "allReduce 1", "end 1"), first.subList(0, 4));
    }
}
