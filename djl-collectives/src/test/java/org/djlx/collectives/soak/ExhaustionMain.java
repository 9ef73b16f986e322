// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.soak;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import com.sun.jna.Function;
import com.sun.jna.Memory;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.ShmOptions;
import org.djlx.collectives.Work;

/**
 * A process that takes all memory, descriptors or threads away from itself, again and again, while
 * ranks that are threads of it create groups and run operations. Each ends, with a result or
 * without. The arguments are what is taken, for how many seconds, and the seed. Run by {@link
 * ExhaustionSoakTest}.
 */
public final class ExhaustionMain {

    private static final int RANKS = 3;
    private static final int OPERATIONS = 30; // in a round
    private static final int THREADS = 8; // that may be started when some have run out at times
    private static final long STACK_BYTES = 24 << 20; // -Xss
    private static final ShmOptions OPTIONS =
            ShmOptions.builder()
                    .optTimeout(Duration.ofSeconds(5))
                    .optChunkSize(4096)
                    .optBufferSize(4096)
                    .build();

    private final Hoard hoard;
    private final Random random;

    // Guarded by this.
    private List<ProcessGroup> groups;
    private long seed; // of the round that runs
    private int round;
    private int atWork; // ranks
    private boolean flap;
    private boolean flapping;
    private long results;
    private long failures;

    private ExhaustionMain(Hoard hoard, long seed) {
        this.hoard = hoard;
        this.random = new Random(seed);
    }

    public static void main(String[] args) throws Exception {
        Hoard.Kind kind = Hoard.Kind.valueOf(args[0]);
        long end = System.nanoTime() + Integer.parseInt(args[1]) * 1_000_000_000L;
        ExhaustionMain main = new ExhaustionMain(new Hoard(kind), Long.parseLong(args[2]));
        for (int rank = 0; rank < RANKS; rank++) {
            int self = rank;
            main.start(() -> main.rank(self));
        }
        main.start(main::flap);
        if (kind == Hoard.Kind.THREADS || main.random.nextBoolean()) {
            main.round(Mode.NOTHING); // Otherwise classes are loaded when there is nothing left.
        }
        if (kind == Hoard.Kind.THREADS) {
            limitAddressSpace();
        }
        // Once each, then at random.
        for (int i = 0; i < Mode.values().length || System.nanoTime() - end < 0; i++) {
            int mode = i < Mode.values().length ? i : main.random.nextInt(Mode.values().length);
            main.round(Mode.values()[mode]);
        }
        main.report();
    }

    /** When a round has nothing left. */
    private enum Mode {
        NOTHING,
        WHILE_GROUPS_ARE_CREATED,
        WHILE_OPERATIONS_RUN,
        ALL_THE_TIME,
        NOW_AND_THEN
    }

    private void start(Runnable body) {
        Thread thread = new Thread(body, "exhaustion");
        thread.setDaemon(true);
        thread.start();
    }

    /**
     * Leaves room for the stacks of some threads and for small allocations: threads run out, for
     * every user of the system, and the JVM keeps the memory that it needs.
     */
    private static void limitAddressSpace() throws IOException {
        long size = 0;
        for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
            if (line.startsWith("VmSize:")) {
                size = Long.parseLong(line.replaceAll("[^0-9]", "")) << 10;
            }
        }
        long limit = size + THREADS * STACK_BYTES + STACK_BYTES * 3 / 4;
        try (Memory limits = new Memory(16)) {
            limits.setLong(0, limit);
            limits.setLong(8, limit);
            int addressSpace = 9; // RLIMIT_AS
            if (Function.getFunction("c", "setrlimit")
                            .invokeInt(new Object[] {addressSpace, limits})
                    != 0) {
                throw new AssertionError("setrlimit fails");
            }
        }
    }

    private void round(Mode mode) throws InterruptedException {
        boolean creating = mode == Mode.WHILE_GROUPS_ARE_CREATED || mode == Mode.ALL_THE_TIME;
        boolean running = mode == Mode.WHILE_OPERATIONS_RUN || mode == Mode.ALL_THE_TIME;
        if (creating) {
            hoard.take();
        }
        if (mode == Mode.NOW_AND_THEN) {
            flap(true);
        }
        List<ProcessGroup> created = null;
        try {
            created = ProcessGroups.local("shm", RANKS, OPTIONS);
        } catch (Exception | Error e) {
            failed();
        }
        if (creating && !running) {
            hoard.release();
        }
        if (created != null) {
            if (running && !creating) {
                hoard.take();
            }
            runRanks(created);
        }
        if (mode == Mode.NOW_AND_THEN) {
            flap(false);
        }
        if (running) {
            hoard.release();
        }
        if (created != null) {
            created.forEach(ProcessGroup::destroy);
        }
    }

    private synchronized void failed() {
        failures++;
    }

    private synchronized void succeeded() {
        results++;
    }

    // Threads tell each other by monitors, which need no memory of the heap.

    private synchronized void runRanks(List<ProcessGroup> created) throws InterruptedException {
        groups = created;
        seed = random.nextLong();
        atWork = RANKS;
        round++;
        notifyAll();
        while (atWork > 0) {
            wait();
        }
        groups = null;
    }

    private void rank(int rank) {
        int done = 0;
        try {
            while (true) {
                ProcessGroup group;
                synchronized (this) {
                    while (round == done) {
                        wait();
                    }
                    done = round;
                    group = groups.get(rank);
                }
                operations(group);
                synchronized (this) {
                    atWork--;
                    notifyAll();
                }
            }
        } catch (InterruptedException e) {
            throw new AssertionError(e);
        }
    }

    private void operations(ProcessGroup group) {
        boolean wrong = false;
        try {
            Random common = new Random(seed);
            for (int i = 0; i < OPERATIONS && !wrong; i++) {
                try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                    wrong = !operation(group, manager, common);
                }
                succeeded();
            }
        } catch (Exception | Error e) {
            failed();
            try {
                group.destroy(); // The others learn that this rank goes no further.
            } catch (Exception | Error again) {
                failed();
            }
        }
        if (wrong) {
            System.out.println("a result is wrong");
            Runtime.getRuntime().halt(4);
        }
    }

    /** Runs an operation; returns whether its result is right. */
    private static boolean operation(ProcessGroup group, NDManager manager, Random common) {
        int rank = group.rank();
        int count = 1 + common.nextInt(3000);
        int root = common.nextInt(RANKS);
        NDArray tensor = manager.full(new Shape(count), (float) rank);
        switch (common.nextInt(4)) {
            case 0 -> {
                group.allReduce(tensor, ReduceOp.SUM).await();
                return holds(tensor, 3);
            }
            case 1 -> {
                group.broadcast(tensor, root).await();
                return holds(tensor, root);
            }
            case 2 -> {
                NDArray other = manager.zeros(new Shape(count));
                int from = (rank + RANKS - 1) % RANKS;
                Work sent = group.send(tensor, (rank + 1) % RANKS, 0);
                group.recv(other, from, 0).await();
                sent.await();
                return holds(other, from);
            }
            default -> {
                group.barrier().await();
                return true;
            }
        }
    }

    private static boolean holds(NDArray array, int value) {
        return array.min().getFloat() == value && array.max().getFloat() == value;
    }

    private synchronized void flap(boolean on) throws InterruptedException {
        flap = on;
        notifyAll();
        while (flapping && !on) {
            wait();
        }
    }

    /** Takes all and gives it back, at random moments. */
    private void flap() {
        Random moments = new Random(7);
        try {
            while (true) {
                synchronized (this) {
                    flapping = false;
                    notifyAll();
                    while (!flap) {
                        wait();
                    }
                    flapping = true;
                }
                hoard.take();
                Thread.sleep(moments.nextInt(20));
                hoard.release();
                Thread.sleep(moments.nextInt(20));
            }
        } catch (InterruptedException e) {
            throw new AssertionError(e);
        }
    }

    /** Says what has happened, and what is left of the groups. */
    private synchronized void report() throws InterruptedException {
        String left = "";
        for (int attempt = 0; attempt < 100; attempt++) {
            left = "";
            for (Map.Entry<Thread, StackTraceElement[]> each :
                    Thread.getAllStackTraces().entrySet()) {
                String name = each.getKey().getName();
                left += name.startsWith("shm-") ? name + Arrays.toString(each.getValue()) : "";
            }
            if (left.isEmpty()) {
                break;
            }
            // A group for whose destruction there was no memory is freed when it is forgotten.
            System.gc();
            Thread.sleep(100);
        }
        System.out.println(left.isEmpty() ? "left:" : "left: " + left);
        System.out.println("rounds " + round + " results " + results + " failures " + failures);
    }
}
