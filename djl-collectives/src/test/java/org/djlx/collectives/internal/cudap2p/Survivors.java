// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import java.util.function.BiConsumer;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.RankProcesses;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.collectives.store.TcpStore;

/** Ranks of {@code cuda_p2p}: rank 1 is killed, the others detect it and continue. */
public final class Survivors {

    private static final int VICTIM = 1;
    private static final Pattern FAILED = Pattern.compile("failed after (\\d+) ms");

    private Survivors() {}

    /**
     * Runs one rank: operations until one fails, then a group of the survivors.
     *
     * @param idle whether the rank is to be killed between two operations
     * @param operation issues an operation and waits for it
     */
    public static void run(boolean idle, BiConsumer<ProcessGroup, NDManager> operation)
            throws InterruptedException {
        CudaP2pOptions options = P2pRanks.options().optBufferSize(16 << 20).build();
        ProcessGroup group = ProcessGroups.init("cuda_p2p", options);
        assertTrue(group.isP2pAvailable());
        int rank = group.rank();
        int worldSize = group.worldSize();
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
            long start = System.nanoTime();
            try {
                for (int round = 0; ; round++) {
                    start = System.nanoTime();
                    operation.accept(group, manager);
                    if (round == 20) {
                        System.out.println("ready");
                        if (idle) {
                            Thread.sleep(rank == VICTIM ? Long.MAX_VALUE : 1000);
                        }
                    }
                }
            } catch (CollectiveException e) {
                long millis = (System.nanoTime() - start) / 1_000_000;
                System.out.println("failed after " + millis + " ms: " + e.getMessage());
            }
            group.destroy();
            goOn(manager, group.device(), rank < VICTIM ? rank : rank - 1, worldSize - 1);
        }
    }

    private static void goOn(NDManager manager, Device device, int rank, int ranks) {
        CudaP2pOptions options = P2pRanks.options(device).optBufferSize(16 << 20).build();
        try (TcpStore store =
                        TcpStore.builder()
                                .setHost(System.getenv("MASTER_ADDR"))
                                .setPort(Integer.parseInt(System.getenv("MASTER_PORT")))
                                .build();
                ProcessGroup left =
                        ProcessGroups.init("cuda_p2p", store, "left", rank, ranks, options)) {
            assertTrue(left.isP2pAvailable());
            NDArray tensor = manager.ones(new Shape(1000));
            Work work = left.allReduce(tensor, ReduceOp.SUM);
            work.await();
            assertEquals(ranks, tensor.toFloatArray()[999]);
            System.out.println("goes on");
        }
    }

    /** Starts ranks, kills one, and checks the others; with a fixed seed for when. */
    public static void check(int worldSize, long seed, Class<?> main, String... arguments)
            throws InterruptedException {
        try (RankProcesses ranks =
                new RankProcesses(worldSize, rank -> P2pRanks.environment(), main, arguments)) {
            for (int rank = 0; rank < worldSize; rank++) {
                while (!ranks.output(rank).contains("ready")) {
                    assertTrue(ranks.process(rank).isAlive(), ranks.output(rank));
                    Thread.sleep(20);
                }
            }
            Thread.sleep(new Random(seed).nextInt(100));
            ranks.process(VICTIM).destroyForcibly();
            for (int rank = 0; rank < worldSize; rank++) {
                if (rank != VICTIM) {
                    boolean ended = ranks.process(rank).waitFor(60, TimeUnit.SECONDS);
                    String output = ranks.output(rank);
                    assertTrue(ended, output);
                    assertEquals(0, ranks.process(rank).exitValue(), output);
                    Matcher failed = FAILED.matcher(output);
                    assertTrue(failed.find(), output);
                    // Long before the timeout: the death is detected.
                    assertTrue(Integer.parseInt(failed.group(1)) < 20_000, output);
                    assertTrue(output.contains("goes on"), output);
                }
            }
        }
    }
}
