// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.nccl;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaMemory;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.cuda.Gpus;
import org.djlx.nativeops.host.NativeMemory;
import org.djlx.nativeops.torch.ScalarType;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** NCCL itself, between two GPUs, which one thread drives. */
@Tag("gpu")
@Timeout(60)
class NcclCommunicatorTest {

    private static final Duration TIMEOUT = Duration.ofSeconds(20);
    private static final int COUNT = 1000;

    /** A rank: its communicator, two streams, and {@link #COUNT} ints. */
    private record Rank(
            CudaDevice device,
            NcclCommunicator nccl,
            CudaStream stream,
            CudaStream other,
            NativeMemory memory) {

        long address() {
            return memory.address();
        }
    }

    private final List<Rank> ranks = new ArrayList<>();

    @BeforeEach
    void create() {
        Gpus.require(2);
        assumeTrue(NativeLibrary.NCCL.isAvailable());
        byte[] id = NcclCommunicator.uniqueId();
        List<CompletableFuture<Rank>> created =
                List.of(0, 1).stream()
                        .map(
                                rank ->
                                        CompletableFuture.supplyAsync(
                                                () -> create(id, rank),
                                                task -> new Thread(task).start()))
                        .toList();
        created.forEach(rank -> ranks.add(rank.join()));
        for (Rank rank : ranks) {
            Gpus.write(rank.device, rank.address(), Gpus.range(0, COUNT));
        }
    }

    private static Rank create(byte[] id, int rank) {
        CudaDevice device = Gpus.open(rank);
        return new Rank(
                device,
                NcclCommunicator.create(device, id, rank, 2, NcclConfig.DEFAULT),
                CudaStream.create(device),
                CudaStream.create(device),
                CudaMemory.allocate(device, COUNT * Integer.BYTES));
    }

    @AfterEach
    void close() {
        ranks.forEach(rank -> rank.nccl.close());
        for (Rank rank : ranks) {
            rank.memory.close();
            rank.stream.close();
            rank.other.close();
            rank.device.close();
        }
    }

    /** Sets up the connections, for which both must call. */
    private void allReduce() {
        NcclGroup.run(() -> ranks.forEach(NcclCommunicatorTest::allReduce));
    }

    private static void allReduce(Rank rank) {
        rank.nccl.allReduce(
                rank.address(),
                rank.address(),
                COUNT,
                ScalarType.INT32,
                NcclCommunicator.Op.SUM.ordinal(),
                rank.stream);
    }

    private void assertValue(int factor) {
        for (Rank rank : ranks) {
            assertEquals(999 * factor, Gpus.read(rank.device, rank.address(), COUNT)[999]);
        }
    }

    @Test
    void oneThreadIssuesForAllRanks() {
        allReduce();
        assertValue(2);
        ranks.forEach(NcclCommunicatorTest::allReduce);
        assertValue(4);
    }

    @Test
    void allReduceWorksInAWindow() {
        Optional<String> cause = NcclWindow.unavailabilityCause();
        assumeTrue(cause.isEmpty(), cause::toString);
        long byteSize = COUNT * Integer.BYTES;
        List<CompletableFuture<Void>> done =
                ranks.stream()
                        .map(
                                rank ->
                                        CompletableFuture.runAsync(
                                                () -> allReduceInWindow(rank, byteSize),
                                                task -> new Thread(task).start()))
                        .toList();
        done.forEach(CompletableFuture::join);
    }

    private static void allReduceInWindow(Rank rank, long byteSize) {
        try (NcclWindow window = NcclWindow.create(rank.nccl, byteSize)) {
            long address = window.memory().address();
            Gpus.write(rank.device, address, Gpus.range(0, COUNT));
            rank.nccl.allReduce(
                    address,
                    address,
                    COUNT,
                    ScalarType.INT32,
                    NcclCommunicator.Op.SUM.ordinal(),
                    rank.stream);
            rank.stream.synchronize();
            assertEquals(2 * 999, Gpus.read(rank.device, address, COUNT)[999]);
        }
    }

    @Test
    void callsRunWhenTheOuterGroupEnds() {
        NcclGroup.begin();
        ranks.forEach(rank -> NcclGroup.run(() -> allReduce(rank)));
        NcclGroup.end();
        assertValue(2);
    }

    /** Why messages get communicators of their own, other streams being not enough. */
    @Test
    void operationsOfOneCommunicatorDoNotOverlap() throws InterruptedException {
        allReduce();
        NcclGroup.run(() -> ranks.forEach(this::message));
        ranks.forEach(rank -> rank.device.synchronize());
        allReduce(ranks.get(0));
        message(ranks.get(0));
        message(ranks.get(1));
        Thread.sleep(1000);
        boolean overlaps = ranks.get(0).other.query();
        ranks.forEach(rank -> rank.nccl.abort()); // Otherwise each waits for the other.
        assertFalse(overlaps);
    }

    /** From rank 0 to 1, on the other stream. */
    private void message(Rank rank) {
        if (rank == ranks.get(0)) {
            rank.nccl.send(rank.address(), COUNT, ScalarType.INT32, 1, rank.other);
        } else {
            rank.nccl.recv(rank.address(), COUNT, ScalarType.INT32, 0, rank.other);
        }
    }

    @Test
    void abortEndsRunningOperations() throws InterruptedException {
        allReduce();
        Rank rank = ranks.get(0);
        allReduce(rank);
        Thread.sleep(100);
        rank.nccl.abort();
        long end = System.nanoTime() + TIMEOUT.toNanos();
        while (!rank.stream.query()) {
            assertTrue(System.nanoTime() < end);
        }
        assertEquals(Optional.empty(), rank.nccl.asyncError());
        assertThrows(IllegalStateException.class, () -> allReduce(rank));
    }
}
