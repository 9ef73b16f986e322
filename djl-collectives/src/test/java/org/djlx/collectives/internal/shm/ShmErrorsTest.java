// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.shm;

import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.Work;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation;
import org.djlx.nativeops.host.NativeMemory;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** What {@code shm} does about Errors, which may come at any place when memory runs out. */
@Timeout(120)
class ShmErrorsTest {

    private static final Operation.Agreed NOTHING =
            new Operation.Agreed(null, new long[0], null, 0);

    /** When memory has run out, there may be none to say so. */
    private static final class Unspeakable extends RuntimeException {

        private static final long serialVersionUID = 1;

        @Override
        public String toString() {
            throw new OutOfMemoryError("on purpose, in a text");
        }
    }

    private static Throwable endOf(Work work) throws Exception {
        return assertThrows(
                        ExecutionException.class,
                        () -> work.getFuture().toCompletableFuture().get(30, TimeUnit.SECONDS))
                .getCause();
    }

    private static void onAll(int worldSize, Consumer<ProcessGroup> body) {
        BackendOptions options = new BackendOptions(Duration.ofSeconds(100));
        List<ProcessGroup> groups = ProcessGroups.local("shm", worldSize, options);
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

    /** Runs an operation that ends with something on rank 0, and expects that no rank goes on. */
    private static void assertBreaks(String expected, Runnable end) {
        onAll(
                3,
                group -> {
                    long begin = System.nanoTime();
                    Work work =
                            group.execute(
                                    new OpType("failing"),
                                    NOTHING,
                                    operation -> {
                                        if (group.rank() == 0) {
                                            end.run();
                                        }
                                        group.p2pBuffers().orElseThrow().awaitAgreement(operation);
                                        group.p2pBuffers()
                                                .orElseThrow()
                                                .intraNodeBarrier(operation);
                                    });
                    for (Work one : List.of(work, group.barrier())) {
                        CollectiveException e = assertThrows(CollectiveException.class, one::await);
                        assertTrue(e.getMessage().contains(expected), e::toString);
                    }
                    // Not by their timeouts.
                    assertTrue(System.nanoTime() - begin < 90_000_000_000L);
                });
    }

    @Test
    void anErrorInABodyBreaksTheGroupOnAllRanks() {
        assertBreaks(
                "on purpose",
                () -> {
                    throw new OutOfMemoryError("on purpose");
                });
    }

    @Test
    void outOfMemoryInAnErrorMessageBreaksTheGroupOnAllRanks() {
        assertBreaks(
                Unspeakable.class.getName(),
                () -> {
                    throw new Unspeakable();
                });
    }

    /** No thread waits for the message: the driving thread frees its tensor. */
    @Test
    void errorWhileFreeingATensorEndsOneMessage() {
        // If the message had already arrived, the thread that closes the memory would free it.
        CountDownLatch closed = new CountDownLatch(1);
        onAll(
                2,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                        NDArray owner = manager.ones(new Shape(4));
                        NDArray tensor = manager.ones(new Shape(4));
                        if (group.rank() == 1) {
                            assertTrue(closed.await(30, TimeUnit.SECONDS));
                            group.send(tensor, 0, 0).await();
                            group.send(tensor, 0, 1).await();
                            return;
                        }
                        NativeMemory memory =
                                new NativeMemory(
                                        Torch.dataPointer(owner),
                                        16,
                                        Device.cpu(),
                                        () -> {
                                            throw new OutOfMemoryError("on purpose");
                                        });
                        NDArray view =
                                Torch.view(manager, memory, 0, new Shape(4), ScalarType.FLOAT32);
                        Work failing = group.recv(view, 1, 0);
                        view.close();
                        memory.close();
                        closed.countDown();
                        Throwable end = endOf(failing);
                        assertTrue(end.getMessage().contains("on purpose"), end::toString);
                        group.recv(tensor, 1, 1).await();
                    } catch (Exception e) {
                        throw new IllegalStateException(e);
                    }
                });
    }
}
