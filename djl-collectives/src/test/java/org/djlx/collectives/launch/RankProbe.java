// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.launch;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.djlx.collectives.ObjectCollectives;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.store.TcpStore;

/** The main class of ranks in {@link Launcher}'s tests. */
public final class RankProbe {

    private RankProbe() {}

    /** Runs the action that the first argument names. */
    public static void main(String[] args) throws Exception {
        String rank = System.getenv("RANK");
        switch (args[0]) {
            case "environment" -> printEnvironment();
            case "arguments" -> {
                System.out.println(String.join("|", args));
                System.out.println("heap " + (Runtime.getRuntime().maxMemory() >> 20));
            }
            case "write" -> {
                System.out.write(
                        "out\n\nlast, no line feed \u00fc".getBytes(StandardCharsets.UTF_8));
                System.err.println("err");
                System.out.flush();
            }
            case "throw" -> {
                keepRunning();
                throw new IOException("rank " + rank + " failed");
            }
            case "throw-unprintable" -> {
                keepRunning();
                throw new Unprintable();
            }
            case "fill-heap" -> {
                keepRunning();
                fillHeap();
                throw new IOException("rank " + rank + " failed");
            }
            case "fail-to-exit" -> {
                Runtime.getRuntime().addShutdownHook(new Thread(() -> sleep(Long.MAX_VALUE)));
                throw new IOException("rank " + rank + " failed");
            }
            case "read" -> System.out.println("read " + System.in.readAllBytes().length);
            case "exit-code-is-rank" -> System.exit(Integer.parseInt(rank));
            case "one-exits" -> {
                if (rank.equals(args[1])) {
                    System.exit(42);
                }
                sleepForever(args);
            }
            case "one-fails-until" -> failUntil(Integer.parseInt(args[1]), args);
            case "one-is-killed-once" -> {
                join();
                if (rank.equals("1") && restarts() == 0) {
                    new ProcessBuilder("sh", "-c", "kill -KILL $PPID").start().waitFor();
                }
                if (restarts() == 0) {
                    sleepForever(args);
                }
                System.out.println("done " + restarts());
            }
            case "meet" -> {
                join();
                try (ProcessGroup group = ProcessGroups.init("shm")) {
                    group.barrier().await();
                    System.out.println("met " + new ObjectCollectives(group).allGatherObject(rank));
                }
            }
            case "meet-as-ranks" -> {
                try (ProcessGroup group = ProcessGroups.init("shm")) {
                    System.out.println(
                            "rank "
                                    + group.rank()
                                    + " met "
                                    + new ObjectCollectives(group).allGatherObject(group.rank()));
                }
            }
            case "one-of" -> {
                if (!System.getenv("WORLD_SIZE").equals(args[1])) {
                    sleepForever(args);
                }
                System.out.println("one of " + args[1] + ", restart " + restarts());
            }
            case "sleep" -> sleepForever(args);
            case "property" -> System.out.println(args[1] + "=" + System.getProperty(args[1]));
            case "leave-child" -> startChild();
            case "sleep-beside-child" -> {
                startChild();
                sleepForever(args);
            }
            default -> throw new IllegalArgumentException(args[0]);
        }
    }

    private static int restarts() {
        return Integer.parseInt(System.getenv("TORCHELASTIC_RESTART_COUNT"));
    }

    /**
     * Rank 1, or that of the third argument, fails while the others sleep, with another exit code
     * each time, up to a number of restarts.
     */
    private static void failUntil(int restart, String[] args) {
        if (restarts() < restart) {
            boolean given = args.length > 2 && args[2].matches("\\d");
            if (System.getenv("RANK").equals(given ? args[2] : "1")) {
                System.exit(40 + restarts());
            }
            sleepForever(args);
        }
        System.out.println(
                "restart " + restarts() + " of " + System.getenv("TORCHELASTIC_MAX_RESTARTS"));
    }

    /** Meets the other ranks in the launcher's store, which has no keys of earlier attempts. */
    private static void join() {
        try (TcpStore store =
                TcpStore.builder()
                        .setHost(System.getenv("MASTER_ADDR"))
                        .setPort(Integer.parseInt(System.getenv("MASTER_PORT")))
                        .build()) {
            long come = store.add("come", 1);
            long all = Long.parseLong(System.getenv("WORLD_SIZE"));
            if (come > all) {
                throw new IllegalStateException("the store has keys of an earlier attempt");
            }
            if (come == all) {
                store.set("all", new byte[0]);
            }
            store.waitFor(List.of("all"), Duration.ofMinutes(1));
        }
    }

    /** Starts a process that holds this one's output and would run for hours. */
    private static void startChild() throws IOException {
        Process child = new ProcessBuilder("sleep", "10000").inheritIO().start();
        System.out.println("pid " + child.pid());
    }

    private static void printEnvironment() {
        Map<String, String> variables = new TreeMap<>(System.getenv());
        variables.forEach((name, value) -> System.out.println(name + "=" + value));
    }

    /** A program whose class is not public. */
    static final class PackagePrivate {

        private PackagePrivate() {}

        public static void main(String[] args) {
            System.out.println("package-private");
        }
    }

    /** Starts a thread that alone keeps the JVM alive. */
    /** An exception whose text cannot be made. */
    private static final class Unprintable extends RuntimeException {

        private static final long serialVersionUID = 1L;

        @Override
        public String toString() {
            throw new IllegalStateException("a test's");
        }
    }

    private static final List<Object> HEAP = new ArrayList<>();

    /** Leaves no free byte: the largest arrays first, then ever smaller ones. */
    private static void fillHeap() {
        for (int size = 1 << 20; size > 0; size >>= 1) {
            try {
                while (true) {
                    HEAP.add(new byte[size]);
                }
            } catch (OutOfMemoryError e) {
                continue;
            }
        }
    }

    private static void keepRunning() {
        new Thread(() -> sleepForever(new String[0])).start();
    }

    /** Prints the process id when ready; with "stubborn" as last argument, ignores SIGTERM. */
    private static void sleepForever(String[] args) {
        boolean stubborn = args.length > 0 && args[args.length - 1].equals("stubborn");
        boolean orderly = args.length > 0 && args[args.length - 1].equals("orderly");
        // After SIGTERM no hook can be added.
        if (orderly) {
            Runtime.getRuntime()
                    .addShutdownHook(
                            new Thread(
                                    () -> {
                                        sleep(500);
                                        System.out.println("left in order");
                                    }));
        } else if (stubborn) {
            Runtime.getRuntime().addShutdownHook(new Thread(() -> sleep(Long.MAX_VALUE)));
        }
        System.out.println("pid " + ProcessHandle.current().pid());
        sleep(Long.MAX_VALUE);
    }

    private static void sleep(long millis) {
        try {
            Thread.sleep(millis);
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }
}
