// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.spi.cpu;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.lang.reflect.Proxy;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicBoolean;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.ShmOptions;
import org.djlx.collectives.TestOperations;
import org.djlx.collectives.internal.host.ControlBlock;
import org.djlx.collectives.internal.host.Liveness;
import org.djlx.collectives.internal.host.Rendezvous;
import org.djlx.collectives.internal.shm.ShmChannels;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.spi.Operation;
import org.djlx.collectives.store.HashStore;
import org.djlx.nativeops.host.SharedMemory;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(60)
class MessageQueueTest {

    private static final Duration TIMEOUT = Duration.ofSeconds(20);

    /** A trace that ignores all events. */
    private static Transfer transfer(
            GroupContext context, MessageQueue queue, NDManager manager, NDArray tensor) {
        Operation operation = context.joining();
        TestOperations.scheduleUntraced(operation);
        HostTensor host =
                new HostTensor(
                        manager,
                        tensor,
                        Torch.info(tensor),
                        context.rank() == 0 ? HostTensor.Access.READ : HostTensor.Access.WRITE);
        return new Transfer(queue, operation, host, 1 - context.rank(), 0, List.of(tensor));
    }

    /** Returns a channel that throws once after the flag is set. */
    private static MessageChannel failing(MessageChannel channel, AtomicBoolean outOfMemory) {
        return (MessageChannel)
                Proxy.newProxyInstance(
                        MessageChannel.class.getClassLoader(),
                        new Class<?>[] {MessageChannel.class},
                        (proxy, method, arguments) -> {
                            if (outOfMemory.getAndSet(false)) {
                                throw new OutOfMemoryError("on purpose");
                            }
                            return method.invoke(channel, arguments);
                        });
    }

    /**
     * Memory runs out on a receiver that drives messages: all of them fail, and their tensors are
     * freed. The sender has not noticed yet and continues; its data must not reach the freed
     * memory.
     */
    @Test
    void failedMessagesWriteNothingIntoTheirTensors() {
        ShmOptions options = ShmOptions.builder().optChunkSize(4096).optBufferSize(0).build();
        try (HashStore store = new HashStore();
                NDManager manager = NDManager.newBaseManager("PyTorch");
                SharedMemory apart = SharedMemory.create("apart", ControlBlock.byteSize(2))) {
            List<GroupContext> contexts = new ArrayList<>();
            List<CompletableFuture<ShmChannels>> segments = new ArrayList<>();
            for (int rank = 0; rank < 2; rank++) {
                GroupContext context =
                        new GroupContext("m", rank, 2, store, new BackendOptions(TIMEOUT), null);
                contexts.add(context);
                segments.add(
                        CompletableFuture.supplyAsync(
                                () -> new ShmChannels(context, options),
                                task -> new Thread(task).start()));
            }
            ControlBlock control = new ControlBlock(segments.get(0).join().memory(), 2);
            // Of which the sender does not hear that the receiver has failed.
            ControlBlock silent = new ControlBlock(apart.memory(), 2);
            Rendezvous sending = new Rendezvous(control, "m", 0, 2);
            Rendezvous receiving = new Rendezvous(silent, "m", 1, 2);
            MessageQueue sender = new MessageQueue("sender", sending, segments.get(0).join()::to);
            AtomicBoolean outOfMemory = new AtomicBoolean();
            MessageChannel channel = failing(segments.get(1).join().to(0), outOfMemory);
            MessageQueue receiver = new MessageQueue("receiver", receiving, peer -> channel);
            NDArray received = manager.zeros(new Shape(1000));
            Transfer receive = transfer(contexts.get(1), receiver, manager, received);
            receiver.submit(receive);
            outOfMemory.set(true);
            assertThrows(CollectiveException.class, receive::await);
            NDArray sent = manager.ones(new Shape(1000));
            Transfer send = transfer(contexts.get(0), sender, manager, sent);
            sender.submit(send);
            for (int i = 0; i < 10; i++) {
                receiver.pass();
                sender.pass();
            }
            assertEquals(0, received.max().getFloat());
            for (Rendezvous rendezvous : List.of(sending, receiving)) {
                rendezvous.close();
            }
            sender.close();
            receiver.close();
            assertTrue(send.isCompleted());
            segments.forEach(segment -> segment.join().close());
        }
    }

    /** Rank 1 has withdrawn its message because it noticed first that rank 2 is dead. */
    @Test
    void deadRankIsNamedBeforeRanksThatFailedBecauseOfIt() throws Exception {
        Process process = new ProcessBuilder("sleep", "100").start();
        long dead = process.pid();
        long started = Liveness.startTime(dead);
        process.destroyForcibly();
        process.waitFor();
        try (HashStore store = new HashStore();
                NDManager manager = NDManager.newBaseManager("PyTorch");
                SharedMemory memory = SharedMemory.create("three", ControlBlock.byteSize(3))) {
            ControlBlock control = new ControlBlock(memory.memory(), 3);
            control.setActive(2, dead, started);
            Rendezvous rendezvous = new Rendezvous(control, "m", 0, 3);
            GroupContext context =
                    new GroupContext("m", 0, 3, store, new BackendOptions(TIMEOUT), null);
            Transfer receive = transfer(context, null, manager, manager.zeros(new Shape(1)));
            String message = new MessageFailures(rendezvous).withdrawn(receive, 1).getMessage();
            String end = "rank 2 (pid " + dead + ") has ended without destroying the group";
            assertTrue(message.contains(end), message);
            assertTrue(message.contains("rank 1 has withdrawn the message"), message);
            receive.end(null);
        }
    }
}
