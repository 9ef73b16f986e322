// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.soak;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ShmOptions;
import org.djlx.collectives.store.Store;
import org.djlx.collectives.store.TcpStore;

/**
 * A rank that is a process: runs random programs until the key {@code stop} is in the store. When
 * an operation fails, it goes on with a new group, of those that the store names as its members.
 * The argument is the seed.
 */
public final class ProgramMain {

    /** The store's key that ends all. */
    static final String STOP = "stop";

    // Long, so that only a look at the processes can tell in time that one is dead.
    private static final Duration TIMEOUT = Duration.ofMinutes(15);

    private final long seed;
    private final Store store;
    private long calls;

    private ProgramMain(long seed, Store store) {
        this.seed = seed;
        this.store = store;
    }

    public static void main(String[] args) {
        try (TcpStore store =
                TcpStore.builder()
                        .setHost(System.getenv("MASTER_ADDR"))
                        .setPort(Integer.parseInt(System.getenv("MASTER_PORT")))
                        .optTimeout(TIMEOUT)
                        .build()) {
            new ProgramMain(Long.parseLong(args[0]), store).run();
        }
    }

    /** The store's key for the ranks of a group, by the number of the groups before. */
    static String membersKey(int generation) {
        return "members" + generation;
    }

    private void run() {
        int self = Integer.parseInt(System.getenv("RANK"));
        boolean done = false;
        for (int generation = 0; !done; generation++) {
            byte[] text = store.get(membersKey(generation), TIMEOUT);
            List<String> members =
                    Arrays.asList(new String(text, StandardCharsets.UTF_8).split(","));
            Random random = new Random(seed + generation);
            ShmOptions options = DifferentialSoakTest.options(random, TIMEOUT);
            int rank = members.indexOf("" + self);
            try (ProcessGroup group =
                    ProcessGroups.init(
                            "shm", store, "g" + generation, rank, members.size(), options)) {
                System.out.println("ready " + generation);
                do {
                    new RandomProgram(group, random.nextLong())
                            .run(1)
                            .values()
                            .forEach(count -> calls += count);
                } while (goesOn(group));
                done = true;
            } catch (CollectiveException e) {
                System.out.println("failed " + generation + ": " + e.getMessage());
            }
        }
        System.out.println("calls: " + calls);
    }

    /** Rank 0 decides. */
    private boolean goesOn(ProcessGroup group) {
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            boolean stop = group.rank() == 0 && store.check(List.of(STOP));
            NDArray more = manager.full(new Shape(1), stop ? 0f : 1f);
            group.broadcast(more, 0).await();
            return more.getFloat() == 1;
        }
    }
}
