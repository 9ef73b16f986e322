// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.p2p;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.List;
import java.util.OptionalLong;
import java.util.Random;
import java.util.concurrent.atomic.AtomicInteger;
import org.djlx.collectives.CollectiveMismatchException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ShmOptions;
import org.djlx.collectives.Work;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation.Agreed;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Arrays in the heap of a group's P2P memory, and the barrier that goes with them. */
@Timeout(60)
class P2pAllocatorTest {

    private static final int RANKS = 3;
    private static final long BUFFER = 10_000; // the heap does not begin on a page
    private static final long HEAP = 1 << 20;
    private static final Agreed NOTHING = new Agreed(null, new long[0], null, 0);

    private NDManager manager;
    private List<ProcessGroup> groups;

    @BeforeEach
    void create() {
        manager = NDManager.newBaseManager("PyTorch");
        groups = local(BUFFER, HEAP);
    }

    private static List<ProcessGroup> local(long bufferSize, long heapSize) {
        ShmOptions options =
                ShmOptions.builder().optBufferSize(bufferSize).optHeapSize(heapSize).build();
        return ProcessGroups.local("shm", RANKS, options);
    }

    @AfterEach
    void destroy() {
        groups.forEach(ProcessGroup::destroy);
        manager.close();
    }

    private static P2pAllocator allocator(ProcessGroup group) {
        return group.p2pBuffers().orElseThrow().allocator();
    }

    private NDArray allocate(P2pAllocator allocator, long count) {
        return allocator.allocate(manager, new Shape(count), ScalarType.FLOAT32);
    }

    @Test
    void otherRanksFindAnArrayAtItsOffset() {
        for (long count : new long[] {1, 100, 3}) {
            List<NDArray> arrays = new ArrayList<>();
            groups.forEach(group -> arrays.add(allocate(allocator(group), count)));
            long offset = allocator(groups.get(0)).offsetOf(arrays.get(0)).getAsLong();
            assertTrue(offset >= BUFFER);
            assertEquals(0, Torch.dataPointer(arrays.get(0)) % 256);
            P2pBuffers first = groups.get(0).p2pBuffers().orElseThrow();
            for (int rank = 0; rank < RANKS; rank++) {
                assertEquals(
                        offset, allocator(groups.get(rank)).offsetOf(arrays.get(rank)).getAsLong());
                first.p2pBuffer(manager, rank, new Shape(count), ScalarType.FLOAT32, offset)
                        .set(new float[(int) count]);
                assertEquals(0, arrays.get(rank).sum().getFloat());
                first.p2pBuffer(manager, rank, new Shape(count), ScalarType.FLOAT32, offset)
                        .addi(rank + 1);
                assertEquals(count * (rank + 1f), arrays.get(rank).sum().getFloat());
            }
        }
    }

    @Test
    void offsetOfFindsArraysInTheHeap() {
        P2pAllocator allocator = allocator(groups.get(0));
        NDArray array = allocator.allocate(manager, new Shape(4, 6), ScalarType.INT64);
        long offset = allocator.offsetOf(array).getAsLong();
        assertEquals(OptionalLong.of(offset + 2 * 6 * 8), allocator.offsetOf(array.get("2:4")));
        assertEquals(OptionalLong.empty(), allocator.offsetOf(array.transpose()));
        assertEquals(OptionalLong.empty(), allocator.offsetOf(array.get("1:1")));
        assertEquals(OptionalLong.empty(), allocator.offsetOf(manager.ones(new Shape(5))));
        // Not that of another rank, and not the buffer before the heap.
        NDArray other = allocate(allocator(groups.get(1)), 7);
        assertEquals(OptionalLong.empty(), allocator.offsetOf(other));
        NDArray buffer =
                groups.get(0)
                        .p2pBuffers()
                        .orElseThrow()
                        .p2pBuffer(manager, 0, new Shape(8), ScalarType.INT64, BUFFER - 64);
        assertEquals(OptionalLong.empty(), allocator.offsetOf(buffer));
    }

    @Test
    void memoryOfClosedArraysIsGivenOutAgain() {
        P2pAllocator allocator = allocator(groups.get(0));
        long all = allocator.freeBytes();
        assertTrue(all > HEAP - 512 && all <= HEAP);
        Random random = new Random(5);
        List<NDArray> live = new ArrayList<>();
        for (int round = 0; round < 3000; round++) {
            if (random.nextInt(5) < 3 && live.size() < 40) {
                NDArray array = allocate(allocator, random.nextInt(3000));
                long value = Torch.dataPointer(array);
                array.addi(0).muli(0).addi(value % 1009);
                live.add(array);
            } else if (!live.isEmpty()) {
                NDArray array = live.remove(random.nextInt(live.size()));
                // Nobody else was given a part of it.
                float expected = Torch.dataPointer(array) % 1009;
                assertTrue(array.isEmpty() || array.eq(expected).all().getBoolean());
                array.close();
            }
        }
        live.forEach(NDArray::close);
        assertEquals(all, allocator.freeBytes());
        // In one piece again.
        allocator.allocate(manager, new Shape(all), ScalarType.UINT8).close();
    }

    @Test
    void aliasesKeepTheMemory() {
        P2pAllocator allocator = allocator(groups.get(0));
        NDArray array = allocate(allocator, 10);
        long address = Torch.dataPointer(array);
        NDArray alias = Torch.alias(manager, array);
        array.close();
        assertNotEquals(address, Torch.dataPointer(allocate(allocator, 10)));
        alias.close();
        assertEquals(address, Torch.dataPointer(allocate(allocator, 10)));
    }

    @Test
    void aFullHeapSaysSo() {
        P2pAllocator allocator = allocator(groups.get(0));
        allocate(allocator, 1000);
        long free = allocator.freeBytes();
        String message =
                assertThrows(IllegalStateException.class, () -> allocate(allocator, 1 << 20))
                        .getMessage();
        assertTrue(message.contains("cannot allocate " + (4 << 20)), message);
        assertTrue(message.contains("heap: " + free), message);
        assertEquals(free, allocator.freeBytes());
        List<ProcessGroup> without = local(4096, 0);
        try {
            assertThrows(IllegalStateException.class, () -> allocate(allocator(without.get(0)), 1));
            assertTrue(without.get(0).isP2pAvailable());
        } finally {
            without.forEach(ProcessGroup::destroy);
        }
        List<ProcessGroup> none = local(0, 0);
        assertFalse(none.get(0).isP2pAvailable());
        none.forEach(ProcessGroup::destroy);
    }

    @Test
    void arraysOutliveTheGroup() {
        P2pAllocator allocator = allocator(groups.get(0));
        NDArray array = allocate(allocator, 1000);
        array.set(new float[1000]);
        groups.forEach(ProcessGroup::destroy);
        assertEquals(0, array.sum().getFloat());
        array.close();
        assertThrows(IllegalStateException.class, () -> allocate(allocator, 1));
    }

    @Test
    void barrierWaitsForEarlierWork() {
        AtomicInteger arrived = new AtomicInteger();
        ProcessGroups.run(
                groups,
                group -> {
                    for (int round = 1; round <= 20; round++) {
                        int expected = round * RANKS;
                        boolean late = round % RANKS == group.rank();
                        group.execute(
                                        new OpType("test"),
                                        NOTHING,
                                        operation -> {
                                            P2pBuffers buffers = group.p2pBuffers().orElseThrow();
                                            buffers.awaitAgreement(operation);
                                            sleep(late ? 3 : 0);
                                            arrived.incrementAndGet();
                                            buffers.intraNodeBarrier(operation);
                                            assertTrue(arrived.get() >= expected);
                                        })
                                .await();
                    }
                    return null;
                });
    }

    private static void sleep(long millis) {
        try {
            Thread.sleep(millis);
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    @Test
    void barrierReportsADifferentCall() {
        ProcessGroups.run(
                groups,
                group -> {
                    OpType type = new OpType(group.rank() == 1 ? "other" : "test");
                    Work work =
                            group.execute(
                                    type,
                                    NOTHING,
                                    operation ->
                                            group.p2pBuffers()
                                                    .orElseThrow()
                                                    .intraNodeBarrier(operation));
                    String message =
                            assertThrows(CollectiveMismatchException.class, work::await)
                                    .getMessage();
                    assertTrue(message.contains("rank 1 called other"), message);
                    return null;
                });
    }
}
