// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.p2p;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.stream.IntStream;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.TestArrays;
import org.djlx.collectives.Work;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/** Cases of barriers of some ranks, for every backend with P2P buffers; run by each rank. */
public final class BarrierCases {

    private static final int ROUNDS = 60;
    private static final Operation.Agreed NOTHING =
            new Operation.Agreed(null, new long[0], null, 0);

    private BarrierCases() {}

    private static Work execute(ProcessGroup group, Consumer<Operation> body) {
        return group.execute(new OpType("barriers"), NOTHING, body);
    }

    private static P2pBuffers buffers(ProcessGroup group) {
        return group.p2pBuffers().orElseThrow();
    }

    private static NDArray words(
            ProcessGroup group, NDManager manager, int rank, int first, int n) {
        P2pBuffers buffers = buffers(group);
        long offset = buffers.bufferSize() / 2 + (long) first * Float.BYTES;
        return buffers.p2pBuffer(manager, rank, new Shape(n), ScalarType.FLOAT32, offset);
    }

    /**
     * In each round the ranks are divided at random; each part exchanges numbers between two
     * barriers of its ranks. In between, barriers of all ranks and signals.
     */
    public static void exchanges(ProcessGroup group, NDManager manager) {
        Random random = new Random(5);
        int n = group.worldSize();
        List<float[]> wanted = new ArrayList<>();
        List<NDArray> outputs = new ArrayList<>();
        List<Work> works = new ArrayList<>();
        for (int round = 0; round < ROUNDS; round++) {
            int[] parts = random.ints(n, 0, 2).toArray();
            boolean everyone = random.nextInt(4) == 0;
            boolean signals = random.nextInt(4) == 0;
            int own = parts[group.rank()];
            int[] ranks = IntStream.range(0, n).filter(rank -> parts[rank] == own).toArray();
            float number = 1000 * round + group.rank();
            NDArray sent = manager.full(new Shape(1), number);
            NDArray output = manager.zeros(new Shape(n));
            works.add(
                    execute(
                            group,
                            operation -> {
                                if (everyone) {
                                    buffers(group).intraNodeBarrier(operation);
                                }
                                if (signals) {
                                    signal(group, operation);
                                }
                                // Until then, a rank may still read what it was sent before.
                                buffers(group).intraNodeBarrier(operation, ranks);
                                for (int peer : ranks) {
                                    Torch.copy(words(group, manager, peer, group.rank(), 1), sent);
                                }
                                buffers(group).intraNodeBarrier(operation, ranks);
                                Torch.copy(output, words(group, manager, group.rank(), 0, n));
                            }));
            outputs.add(output);
            float[] last = round == 0 ? new float[n] : wanted.get(round - 1).clone();
            for (int peer : ranks) {
                last[peer] = 1000 * round + peer;
            }
            wanted.add(last);
        }
        works.forEach(Work::await);
        for (int round = 0; round < ROUNDS; round++) {
            for (int rank = 0; rank < n; rank++) {
                if (wanted.get(round)[rank] == 0) {
                    wanted.get(round)[rank] = outputs.get(round).getFloat(rank); // never sent
                }
            }
            assertArrayEquals(wanted.get(round), outputs.get(round).toFloatArray(), "" + round);
        }
    }

    /** Each rank writes a number to each peer, between two barriers; rank 0 after the others. */
    public static void copies(ProcessGroup group, CountDownLatch ahead) {
        int n = group.worldSize();
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
            NDArray sent = manager.full(new Shape(1), 100f + group.rank());
            NDArray output = manager.zeros(new Shape(n));
            if (group.rank() == 0) {
                assertTrue(ahead.await(60, TimeUnit.SECONDS));
            }
            Work work =
                    execute(
                            group,
                            operation -> {
                                buffers(group).intraNodeBarrier(operation);
                                for (int peer = 0; peer < n; peer++) {
                                    Torch.copy(words(group, manager, peer, group.rank(), 1), sent);
                                }
                                buffers(group).intraNodeBarrier(operation);
                                Torch.copy(output, words(group, manager, group.rank(), 0, n));
                            });
            ahead.countDown();
            work.await(group.timeout());
            float[] wanted = new float[n];
            for (int rank = 0; rank < n; rank++) {
                wanted[rank] = 100 + rank;
            }
            assertArrayEquals(wanted, TestArrays.awaited(output).toFloatArray());
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    private static void signal(ProcessGroup group, Operation operation) {
        P2pBuffers buffers = buffers(group);
        long epoch = buffers.epoch(operation);
        for (int peer = 0; peer < group.worldSize(); peer++) {
            buffers.putSignal(peer, 0, epoch);
        }
        for (int peer = 0; peer < group.worldSize(); peer++) {
            buffers.waitSignal(operation, peer, 0, epoch);
        }
    }

    /** The barriers of ranks 0 and 1 end before the other ranks call anything. */
    public static void othersNeedNotCall(ProcessGroup group, CountDownLatch ended)
            throws InterruptedException {
        if (group.rank() > 1) {
            assertTrue(ended.await(60, TimeUnit.SECONDS));
        }
        for (int round = 0; round < 3; round++) {
            execute(
                            group,
                            operation -> {
                                if (group.rank() < 2) {
                                    buffers(group).intraNodeBarrier(operation, 1, 0);
                                }
                            })
                    .await();
        }
        ended.countDown();
    }

    /** Rank 0 names ranks 0 and 1, the other ranks name 0 to 2: the group breaks everywhere. */
    public static void differentRanks(ProcessGroup group) {
        int[] ranks = group.rank() == 0 ? new int[] {0, 1} : new int[] {0, 1, 2};
        Work work =
                execute(
                        group,
                        operation -> {
                            if (group.rank() < 3) {
                                buffers(group).intraNodeBarrier(operation, ranks);
                            }
                        });
        if (group.rank() < 2) {
            assertDifferent(assertThrows(CollectiveException.class, work::await));
        } else {
            try {
                work.await(); // Rank 3 calls no barrier.
            } catch (CollectiveException e) {
                assertDifferent(e);
            }
        }
    }

    private static void assertDifferent(CollectiveException e) {
        String message = e.getMessage();
        assertTrue(message.contains(" called the barrier of ranks ["), message);
        assertTrue(message.contains("name the same ranks on each of them"), message);
    }
}
