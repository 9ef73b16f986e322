// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.RankProcesses;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.store.Store;
import org.djlx.collectives.store.TcpStore;

/**
 * Ranks of {@code cuda_p2p}: in each round rank 1 is killed, and the others detect it and continue
 * without it. Then the next process is rank 1. All processes start at once, because that takes most
 * of the time.
 */
public final class Survivors {

    private static final int VICTIM = 1;
    private static final Duration PATIENCE = Duration.ofSeconds(60);

    private Survivors() {}

    /** What a rank does until it fails. */
    @FunctionalInterface
    public interface Step {

        /** Issues operations and waits for them. */
        void run(int round, ProcessGroup group, NDManager manager);
    }

    /**
     * Runs one rank: steps until one fails, then a group of the survivors, in each round.
     *
     * @param idle whether the rank is to be killed between two steps
     */
    public static void run(boolean idle, Step step) throws InterruptedException {
        int process = Integer.parseInt(System.getenv("RANK"));
        int worldSize = Integer.parseInt(System.getenv("SURVIVORS_OF"));
        int rounds = Integer.parseInt(System.getenv("WORLD_SIZE")) - worldSize + 1;
        boolean isVictim = process == VICTIM || process >= worldSize;
        Device device = Device.gpu(Integer.parseInt(System.getenv("LOCAL_RANK")));
        try (TcpStore store =
                        TcpStore.builder()
                                .setHost(System.getenv("MASTER_ADDR"))
                                .setPort(Integer.parseInt(System.getenv("MASTER_PORT")))
                                .optTimeout(PATIENCE)
                                .build();
                NDManager manager = NDManager.newBaseManager(device, "PyTorch")) {
            manager.ones(new Shape(1)).toFloatArray(); // CUDA starts before the round.
            if (isVictim) {
                int round = process == VICTIM ? 0 : process - worldSize + 1;
                store.get("round " + round);
                round(store, round, VICTIM, worldSize, idle, step, manager);
                throw new AssertionError("the victim was to be killed");
            }
            for (int round = 0; round < rounds; round++) {
                round(store, round, process, worldSize, idle, step, manager);
                int rank = process < VICTIM ? process : process - 1;
                goOn(store, round, rank, worldSize - 1, manager);
            }
        }
    }

    private static ProcessGroup group(
            Store store, String name, int rank, int ranks, Device device) {
        CudaP2pOptions options = P2pRanks.options(device).optBufferSize(16 << 20).build();
        ProcessGroup group = ProcessGroups.init("cuda_p2p", store, name, rank, ranks, options);
        assertTrue(group.isP2pAvailable());
        return group;
    }

    private static void round(
            Store store, int round, int rank, int ranks, boolean idle, Step step, NDManager manager)
            throws InterruptedException {
        ProcessGroup group = group(store, "all-" + round, rank, ranks, manager.getDevice());
        long start = System.nanoTime();
        try {
            for (int i = 0; ; i++) {
                start = System.nanoTime();
                step.run(round, group, manager);
                if (i == 20) {
                    System.out.println("ready " + round);
                    if (idle) {
                        Thread.sleep(rank == VICTIM ? Long.MAX_VALUE : 300);
                    }
                }
            }
        } catch (CollectiveException e) {
            long millis = (System.nanoTime() - start) / 1_000_000;
            System.out.printf("failed %d after %d ms: %s%n", round, millis, e.getMessage());
        }
        group.destroy();
    }

    private static void goOn(Store store, int round, int rank, int ranks, NDManager manager) {
        try (ProcessGroup left = group(store, "left-" + round, rank, ranks, manager.getDevice())) {
            NDArray tensor = manager.ones(new Shape(1000));
            left.allReduce(tensor, ReduceOp.SUM).await();
            assertEquals(ranks, tensor.toFloatArray()[999]);
            System.out.println("goes on " + round);
        }
    }

    /** Starts ranks, kills one in each round, and checks the others; with a seed for when. */
    public static void check(
            int worldSize, int rounds, long seed, Class<?> main, String... arguments)
            throws InterruptedException {
        Random random = new Random(seed);
        try (RankProcesses ranks =
                new RankProcesses(
                        worldSize + rounds - 1,
                        process -> environment(process, worldSize),
                        main,
                        arguments)) {
            for (int round = 0; round < rounds; round++) {
                ranks.store().set("round " + round, new byte[0]);
                int victim = round == 0 ? VICTIM : worldSize + round - 1;
                for (int rank = 0; rank < worldSize; rank++) {
                    await(ranks, rank == VICTIM ? victim : rank, "ready " + round + "\n");
                }
                Thread.sleep(random.nextInt(100));
                ranks.process(victim).destroyForcibly();
                for (int rank = 0; rank < worldSize; rank++) {
                    if (rank != VICTIM) {
                        await(ranks, rank, "goes on " + round + "\n");
                        String output = ranks.output(rank);
                        Matcher failed =
                                Pattern.compile("failed " + round + " after (\\d+) ms")
                                        .matcher(output);
                        assertTrue(failed.find(), output);
                        // Long before the timeout: the death is detected.
                        assertTrue(Integer.parseInt(failed.group(1)) < 20_000, output);
                    }
                }
            }
            for (int rank = 0; rank < worldSize; rank++) {
                if (rank != VICTIM) {
                    boolean ended = ranks.process(rank).waitFor(60, TimeUnit.SECONDS);
                    assertTrue(ended, ranks.output(rank));
                    assertEquals(0, ranks.process(rank).exitValue(), ranks.output(rank));
                }
            }
        }
    }

    private static Map<String, String> environment(int process, int worldSize) {
        Map<String, String> environment = new HashMap<>();
        environment.put("LOCAL_RANK", "" + (process < worldSize ? process : VICTIM));
        environment.putAll(P2pRanks.environment());
        environment.put("SURVIVORS_OF", "" + worldSize);
        return environment;
    }

    private static void await(RankProcesses ranks, int process, String text)
            throws InterruptedException {
        long deadline = System.nanoTime() + PATIENCE.toNanos();
        while (!ranks.output(process).contains(text)) {
            boolean alive = ranks.process(process).isAlive() && System.nanoTime() < deadline;
            assertTrue(alive, () -> "no '" + text.strip() + "':\n" + ranks.output(process));
            Thread.sleep(20);
        }
    }
}
