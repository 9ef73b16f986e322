// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.shm;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.function.Consumer;
import java.util.function.Function;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveTimeoutException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.RankProcesses;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.SharedFiles;
import org.djlx.collectives.ShmOptions;
import org.djlx.collectives.Work;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation;
import org.djlx.collectives.store.HashStore;
import org.djlx.collectives.store.Store;
import org.djlx.nativeops.host.NativeMemory;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.function.Executable;

/** What {@code shm} does when ranks are missing, leave, or die. */
@Timeout(200)
@Tag("slow")
class ShmFailureTest {

    // Of operations only: the ranks must come together to create a group.
    private static final Duration SHORT = Duration.ofMillis(300);

    private static List<ProcessGroup> groups(int worldSize, Duration timeout) {
        return ProcessGroups.local("shm", worldSize, new BackendOptions(timeout));
    }

    private static void onAll(List<ProcessGroup> groups, Consumer<ProcessGroup> body) {
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        body.accept(group);
                        return null;
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    @Test
    void timeoutNamesTheOperationAndTheMissingRanks() {
        onAll(
                groups(4, Duration.ofSeconds(60)),
                group -> {
                    group.barrier().await();
                    if (group.rank() % 2 == 1) {
                        return;
                    }
                    try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                        NDArray tensor = manager.ones(new Shape(3));
                        Work work = group.withTimeout(SHORT).allReduce(tensor, ReduceOp.SUM);
                        CollectiveTimeoutException e =
                                assertThrows(CollectiveTimeoutException.class, work::await);
                        assertEquals(List.of(1, 3), e.missingRanks());
                        String message = e.getMessage();
                        assertTrue(message.contains("allReduce(float32, (3), SUM) #2"), message);
                        assertTrue(message.contains("'" + group.name() + "'"), message);
                        assertTrue(message.contains("ranks 1, 3 did not arrive"), message);
                        assertTrue(work.isCompleted());
                        assertFalse(work.isSuccess());
                        assertTrue(work.exception().isPresent());
                        assertThrows(CollectiveTimeoutException.class, work::await);
                        assertTrue(
                                work.getFuture().toCompletableFuture().isCompletedExceptionally());
                        message =
                                assertThrows(
                                                CollectiveException.class,
                                                () -> group.barrier().await())
                                        .getMessage();
                        assertTrue(message.contains("broken"), message);
                        assertTrue(message.contains("ranks 1, 3 did not arrive"), message);
                    }
                });
    }

    @Test
    void lateRankGetsTheOtherRanksFailure() {
        CountDownLatch gaveUp = new CountDownLatch(1);
        onAll(
                groups(2, Duration.ofSeconds(60)),
                group -> {
                    if (group.rank() == 0) {
                        assertThrows(
                                CollectiveTimeoutException.class,
                                () -> group.withTimeout(SHORT).barrier().await());
                        gaveUp.countDown();
                    } else {
                        // It completes no operation that rank 0 has abandoned.
                        String message =
                                assertThrows(
                                                CollectiveException.class,
                                                () -> {
                                                    gaveUp.await();
                                                    group.barrier().await();
                                                })
                                        .getMessage();
                        assertTrue(message.contains("rank 0 failed"), message);
                        assertTrue(message.contains("rank 1 did not arrive"), message);
                    }
                });
    }

    @Test
    void awaitWithTimeoutLeavesTheOperationRunning() {
        onAll(
                groups(2, Duration.ofSeconds(60)),
                group -> {
                    if (group.rank() == 0) {
                        Work work = group.barrier();
                        CollectiveTimeoutException e =
                                assertThrows(
                                        CollectiveTimeoutException.class,
                                        () -> work.await(Duration.ofMillis(50)));
                        assertTrue(e.getMessage().contains("barrier"), e.getMessage());
                        assertFalse(work.isCompleted());
                        group.p2pBuffers().orElseThrow().putSignal(1, 0, 1);
                        work.await();
                    } else {
                        // Until rank 0 has seen its timeout.
                        group.p2pBuffers()
                                .orElseThrow()
                                .waitSignal(signalOperation(group), 0, 0, 1);
                        group.barrier().await();
                    }
                });
    }

    /**
     * Operation 2³² has an epoch after that of operation 2³² - 1, also for a channel left unused.
     */
    @Test
    void epochsGrowBeyond32Bits() {
        onAll(
                groups(2, Duration.ofSeconds(60)),
                group -> {
                    P2pBuffers buffers = group.p2pBuffers().orElseThrow();
                    for (long number : new long[] {1, (1L << 32) - 1, 1L << 32}) {
                        Operation operation =
                                new Operation(
                                        OpType.BARRIER,
                                        number,
                                        group.name(),
                                        group.timeout(),
                                        new Operation.Agreed(null, new long[0], null, 0));
                        long epoch = buffers.epoch(operation);
                        assertEquals(number, epoch);
                        buffers.putSignal(1 - group.rank(), 0, epoch);
                        buffers.waitSignal(operation, 1 - group.rank(), 0, epoch);
                    }
                });
    }

    private static Operation signalOperation(ProcessGroup group) {
        return new GroupContext(
                        group.name(),
                        group.rank(),
                        group.worldSize(),
                        new HashStore(),
                        new BackendOptions(Duration.ofSeconds(60)),
                        null)
                .joining();
    }

    @Test
    void destroyEndsRunningOperations() {
        CountDownLatch destroyed = new CountDownLatch(1);
        onAll(
                groups(2, Duration.ofSeconds(60)),
                group -> {
                    if (group.rank() == 0) {
                        Work running = group.barrier();
                        Work pending = group.barrier();
                        while (group.flightRecorder().dump().lastStarted() < 1) {
                            Thread.onSpinWait();
                        }
                        group.destroy();
                        group.destroy();
                        destroyed.countDown();
                        for (Work work : List.of(running, pending)) {
                            String message =
                                    assertThrows(CollectiveException.class, work::await)
                                            .getMessage();
                            assertTrue(message.contains("destroyed the group"), message);
                        }
                        assertTrue(
                                assertThrows(IllegalStateException.class, group::barrier)
                                        .getMessage()
                                        .contains("destroyed"));
                    } else {
                        String message =
                                assertThrows(
                                                CollectiveException.class,
                                                () -> {
                                                    destroyed.await();
                                                    group.barrier().await();
                                                })
                                        .getMessage();
                        assertTrue(message.contains("rank 0"), message);
                    }
                });
    }

    @Test
    void p2pBuffersOfADestroyedGroupAreAnError() throws Exception {
        List<ProcessGroup> groups = groups(2, Duration.ofSeconds(60));
        P2pBuffers buffers = groups.get(0).p2pBuffers().orElseThrow();
        Operation operation = signalOperation(groups.get(0));
        List<Throwable> ends = new ArrayList<>();
        Thread waiting =
                new Thread(
                        () ->
                                ends.add(
                                        assertThrows(
                                                CollectiveException.class,
                                                () -> buffers.waitSignal(operation, 1, 0, 1))));
        waiting.start();
        Thread.sleep(200); // Until it sleeps on the doorbell of its rank.
        groups.forEach(ProcessGroup::destroy);
        waiting.join();
        assertEquals(1, ends.size());
        assertTrue(ends.get(0).getMessage().contains("destroyed"), ends.get(0).getMessage());
        Shape shape = new Shape(1);
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            for (Executable use :
                    List.<Executable>of(
                            () -> buffers.p2pBuffer(manager, 0, shape, ScalarType.INT8, 0),
                            () -> buffers.putSignal(1, 0, 1),
                            () -> buffers.waitSignal(operation, 1, 0, 1),
                            () -> buffers.awaitAgreement(operation))) {
                String message = assertThrows(IllegalStateException.class, use).getMessage();
                assertTrue(message.contains("destroyed"), message);
            }
        }
    }

    @Test
    void operationEndsEvenIfItsTensorCannotBeFreed() {
        List<ProcessGroup> groups = groups(2, Duration.ofSeconds(60));
        ProcessGroup group = groups.get(0);
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            NDArray owner = manager.ones(new Shape(4));
            NativeMemory memory =
                    new NativeMemory(
                            Torch.dataPointer(owner),
                            16,
                            Device.cpu(),
                            () -> {
                                throw new IllegalStateException("on purpose");
                            });
            NDArray view = Torch.view(manager, memory, 0, new Shape(4), ScalarType.FLOAT32);
            group.barrier();
            Work pending = group.allReduce(view, ReduceOp.SUM);
            view.close();
            memory.close();
            groups.forEach(ProcessGroup::destroy);
            assertTrue(pending.isCompleted());
            CollectiveException e = assertThrows(CollectiveException.class, pending::await);
            assertTrue(e.getMessage().contains("destroyed"), e.getMessage());
            assertEquals("on purpose", e.getSuppressed()[0].getMessage());
        }
    }

    /** Nothing but errors may come of it; freed memory would end the JVM. */
    @Test
    void destroyRacesWithAnyCall() throws InterruptedException {
        Queue<Throwable> unexpected = new ConcurrentLinkedQueue<>();
        for (int round = 0; round < 150; round++) {
            List<ProcessGroup> groups = groups(2, Duration.ofSeconds(60));
            List<Thread> threads = new ArrayList<>();
            for (ProcessGroup group : groups) {
                int peer = 1 - group.rank();
                List<Function<NDArray, Work>> calls =
                        List.of(
                                tensor -> group.allReduce(tensor, ReduceOp.SUM),
                                tensor -> group.send(tensor, peer, 0),
                                tensor -> group.recv(tensor, peer, 0));
                calls.forEach(call -> threads.add(new Thread(() -> repeat(call))));
            }
            threads.forEach(
                    thread -> thread.setUncaughtExceptionHandler((t, e) -> unexpected.add(e)));
            threads.forEach(Thread::start);
            Thread.sleep(round % 20);
            groups.get(round % 2).destroy();
            Thread.sleep(round % 3);
            groups.get(1 - round % 2).destroy();
            for (Thread thread : threads) {
                thread.join();
            }
        }
        assertTrue(unexpected.isEmpty(), unexpected::toString);
    }

    /** Issues an operation on arrays that are closed at once, until the group is gone. */
    private static void repeat(Function<NDArray, Work> call) {
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            while (true) {
                Work work;
                try (NDArray tensor = manager.create(new float[1000])) {
                    work = call.apply(tensor);
                }
                work.await();
            }
        } catch (CollectiveException | IllegalStateException e) {
            // Which of them depends on when the group was destroyed.
            if (!e.getMessage().contains("destroyed")) {
                throw e;
            }
        }
    }

    @Test
    void operationMayDestroyItsGroup() {
        for (boolean fails : List.of(false, true)) {
            onAll(
                    groups(2, Duration.ofSeconds(60)),
                    group -> {
                        Operation.Agreed nothing = new Operation.Agreed(null, new long[0], null, 0);
                        Work work =
                                group.execute(
                                        new OpType("last"),
                                        nothing,
                                        operation -> {
                                            group.p2pBuffers()
                                                    .orElseThrow()
                                                    .awaitAgreement(operation);
                                            group.destroy();
                                            if (fails) {
                                                throw new IllegalArgumentException("on purpose");
                                            }
                                        });
                        if (fails) {
                            String message =
                                    assertThrows(CollectiveException.class, work::await)
                                            .getMessage();
                            assertTrue(message.contains("on purpose"), message);
                        } else {
                            work.await();
                        }
                    });
        }
    }

    @Test
    void interruptFailsTheOperation() {
        onAll(
                groups(2, Duration.ofSeconds(60)),
                group -> {
                    if (group.rank() == 0) {
                        Thread.currentThread().interrupt();
                        String message =
                                assertThrows(
                                                CollectiveException.class,
                                                () -> group.barrier().await())
                                        .getMessage();
                        assertTrue(message.contains("interrupted"), message);
                        assertTrue(Thread.interrupted());
                    } else {
                        try {
                            Thread.sleep(500);
                        } catch (InterruptedException e) {
                            throw new IllegalStateException(e);
                        }
                    }
                });
    }

    @Test
    void initTimeoutNamesTheMissingRanks() {
        try (Store store = new HashStore()) {
            CollectiveTimeoutException e =
                    assertThrows(
                            CollectiveTimeoutException.class,
                            () ->
                                    ProcessGroups.init(
                                            "shm",
                                            store,
                                            "lonely",
                                            0,
                                            2,
                                            new BackendOptions(Duration.ofMillis(100))));
            assertEquals(List.of(1), e.missingRanks());
            assertTrue(e.getMessage().contains("lonely"), e.getMessage());
        }
    }

    @Test
    void differentOptionsAreNamedOnAllRanks() {
        try (Store store = new HashStore()) {
            List<String> messages = new ArrayList<>();
            List<Thread> threads = new ArrayList<>();
            for (int rank = 0; rank < 2; rank++) {
                int self = rank;
                ShmOptions options =
                        ShmOptions.builder()
                                .optTimeout(Duration.ofSeconds(20))
                                .optBufferSize(4096L << rank)
                                .build();
                threads.add(
                        new Thread(
                                () -> {
                                    String message =
                                            assertThrows(
                                                            CollectiveException.class,
                                                            () ->
                                                                    ProcessGroups.init(
                                                                            "shm", store, "g", self,
                                                                            2, options))
                                                    .getMessage();
                                    synchronized (messages) {
                                        messages.add(message);
                                    }
                                }));
            }
            threads.forEach(Thread::start);
            for (Thread thread : threads) {
                thread.join();
            }
            assertEquals(2, messages.size());
            for (String message : messages) {
                assertTrue(message.contains("buffer 4096"), message);
                assertTrue(message.contains("buffer 8192"), message);
            }
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    @Test
    void sizesBeyondTheAddressSpaceAreRejected() {
        for (ShmOptions options :
                List.of(
                        ShmOptions.builder().optBufferSize(Long.MAX_VALUE).build(),
                        ShmOptions.builder().optChunkSize(1L << 62).build())) {
            // On each rank by itself: none waits for another.
            IllegalArgumentException e =
                    assertThrows(
                            IllegalArgumentException.class,
                            () -> ProcessGroups.local("shm", 2, options));
            assertTrue(e.getMessage().contains("for each of 2 ranks"), e.getMessage());
        }
    }

    @Test
    void foreignOptionsAreRejected() {
        BackendOptions foreign = new BackendOptions(Duration.ofSeconds(1)) {};
        try (Store store = new HashStore()) {
            assertThrows(
                    IllegalArgumentException.class,
                    () -> ProcessGroups.init("shm", store, "g", 0, 1, foreign));
        }
    }

    @Test
    void killedRankMakesTheOthersFail() throws Exception {
        Set<Path> before = SharedFiles.now();
        try (RankProcesses ranks = new RankProcesses(3, VictimMain.class)) {
            for (int rank = 0; rank < 3; rank++) {
                while (!ranks.output(rank).contains("running")) {
                    assertTrue(ranks.process(rank).isAlive(), ranks.output(rank));
                    Thread.sleep(20);
                }
            }
            // SIGKILL: the process gets no chance to do anything.
            long victim = ranks.process(1).pid();
            assertEquals(0, new ProcessBuilder("sh", "-c", "kill -9 " + victim).start().waitFor());
            List<Integer> codes = ranks.await();
            assertEquals(List.of(0, 137, 0), codes, () -> ranks.output(0) + ranks.output(2));
            for (int rank : List.of(0, 2)) {
                String output = ranks.output(rank);
                // Either saw the dead process itself, or heard of it from the other.
                assertTrue(
                        output.contains(
                                "the process of rank 1 (pid "
                                        + victim
                                        + ") has ended without destroying the group"),
                        output);
                assertTrue(output.contains("later: "), output);
                // 1 of rank 0 and 3 of rank 2.
                assertTrue(output.contains("rank " + rank / 2 + " of 2 now: 4.0"), output);
                assertTrue(output.contains("mapped: false"), output);
            }
        }
        assertEquals(before, SharedFiles.now());
    }
}
