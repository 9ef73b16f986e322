// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.soak;

import java.nio.file.Path;
import java.time.Duration;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.djlx.collectives.SharedFiles;

/**
 * An attack: rounds of random events until its time is over, and at least one. How long it goes on
 * and from which seed is told by the system properties {@code test.soak.seconds} and {@code
 * test.soak.seed}, which it prints with what it did, and names when it fails. It ends in bounded
 * time whatever happens, and must leave nothing: no thread, no process, no file in /dev/shm.
 *
 * <p>Thread-safe.
 */
public final class Soak {

    /** How long an attack goes on. */
    public static final int SECONDS =
            Integer.parseInt(System.getProperty("test.soak.seconds", "60"));

    /** From what all its random numbers come. */
    public static final long SEED = Long.parseLong(System.getProperty("test.soak.seed", "1"));

    /** How long the last round may take after the time is over: slow machines, not hangs. */
    private static final Duration GRACE = Duration.ofMinutes(4);

    // Where an attack reports progress: prints all stacks after so long without, and fails after
    // STUCK, which is longer than the timeout of the groups.
    private static final Duration STALLED = Duration.ofSeconds(10);
    private static final Duration STUCK = Duration.ofSeconds(60);

    // Those that a JVM has for all groups, and keeps for a while.
    private static final Set<String> KEPT =
            Set.of(
                    "process reaper",
                    "ForkJoinPool",
                    "Common-Cleaner",
                    "CompletableFutureDelayScheduler",
                    "JNA Cleaner",
                    "junit",
                    "Attach Listener",
                    "flight-writer",
                    "p2p-stream",
                    "forgotten-groups",
                    "cuda_p2p-free");

    private final String name;
    private final long end;
    private final Map<String, Long> counts = new TreeMap<>(); // guarded by this
    private int round = -1; // guarded by this
    private long progress; // when, 0 unless the attack reports it; guarded by this
    private final long begin = System.nanoTime();

    private Soak(String name) {
        this.name = name;
        this.end = System.nanoTime() + TimeUnit.SECONDS.toNanos(SECONDS);
    }

    /** What an attack does. */
    @FunctionalInterface
    public interface Attack {

        /**
         * Runs rounds as long as there are {@linkplain Soak#nextRound() more}.
         *
         * @param soak tells how long
         * @throws Exception if something is wrong
         */
        void run(Soak soak) throws Exception;
    }

    /** Runs an attack; fails if it does, if it does not end, or if it leaves something. */
    public static void run(String name, Attack attack) throws InterruptedException {
        Soak soak = new Soak(name);
        Set<Path> files = SharedFiles.now();
        Set<Long> threads = threads();
        Set<Long> processes = processes();
        Throwable[] failure = {null};
        Thread thread =
                new Thread(
                        () -> {
                            try {
                                attack.run(soak);
                            } catch (Throwable e) {
                                failure[0] = e;
                            }
                        },
                        name);
        thread.start();
        soak.await(thread);
        if (thread.isAlive()) {
            String stacks = stacks();
            thread.interrupt();
            throw new AssertionError(soak + " does not end; the threads:\n" + stacks);
        }
        if (failure[0] != null) {
            throw new AssertionError(soak + " failed: " + failure[0], failure[0]);
        }
        System.out.println(soak);
        soak.awaitNothingLeft(files, threads, processes);
    }

    /** Waits until the attack has ended, its time and grace are over, or it is stuck. */
    private void await(Thread thread) throws InterruptedException {
        long last = begin + TimeUnit.SECONDS.toNanos(SECONDS) + GRACE.toNanos();
        long printed = 0;
        while (thread.isAlive() && System.nanoTime() - last < 0) {
            thread.join(1000);
            long since;
            synchronized (this) {
                since = progress;
            }
            long still = since == 0 ? 0 : System.nanoTime() - since;
            if (still > STUCK.toNanos()) {
                return;
            }
            if (still > STALLED.toNanos() && printed != since) {
                printed = since;
                System.out.println(
                        this + " has made no progress for 10 s; the threads:\n" + stacks());
            }
        }
    }

    /** Reports and prints progress. Once reported, there must be more within a minute. */
    public synchronized void progress(String what) {
        progress = System.nanoTime();
        System.out.printf("%6.1f s, round %d: %s%n", (progress - begin) / 1e9, round, what);
    }

    /** Whether another round begins: the time is not over, or none has begun. */
    public synchronized boolean nextRound() {
        if (round >= 0 && isOver()) {
            return false;
        }
        round++;
        add("rounds", 1);
        return true;
    }

    /** Whether the time is over. */
    public boolean isOver() {
        return System.nanoTime() - end >= 0;
    }

    /** How much of the time is left, in seconds. */
    public int secondsLeft() {
        long left = TimeUnit.NANOSECONDS.toSeconds(end - System.nanoTime());
        return (int) Math.max(0, left);
    }

    /** The seed of this round. */
    public synchronized long roundSeed() {
        return new Random(SEED * 1_000_003 + round).nextLong();
    }

    /** Adds to a number that is printed in the end. */
    public synchronized void add(String what, long count) {
        counts.merge(what, count, Long::sum);
    }

    /** How many there have been. */
    public synchronized long count(String what) {
        return counts.getOrDefault(what, 0L);
    }

    /** Fails unless there has been one of each. */
    public void requireAll(Iterable<?> kinds) {
        for (Object kind : kinds) {
            if (count(kind.toString()) == 0) {
                throw new AssertionError("there was no " + kind);
            }
        }
    }

    private void awaitNothingLeft(Set<Path> files, Set<Long> threads, Set<Long> processes)
            throws InterruptedException {
        String left = "";
        for (int attempt = 0; attempt < 200; attempt++) {
            left = left(files, threads, processes);
            if (left.isEmpty()) {
                return;
            }
            Thread.sleep(100); // Threads that were told to end may take a moment.
        }
        throw new AssertionError(this + " left" + left);
    }

    private static String left(Set<Path> files, Set<Long> threads, Set<Long> processes) {
        StringBuilder left = new StringBuilder();
        Set<Path> newFiles = SharedFiles.now();
        newFiles.removeAll(files);
        newFiles.forEach(file -> left.append(" the file ").append(file));
        Set<Long> newProcesses = processes();
        newProcesses.removeAll(processes);
        newProcesses.forEach(pid -> left.append(" the process ").append(pid));
        for (Thread thread : Thread.getAllStackTraces().keySet()) {
            String called = thread.getName();
            if (!threads.contains(thread.getId())
                    && KEPT.stream().noneMatch(called::contains)
                    && thread.isAlive()) {
                left.append(" the thread '").append(called).append("'");
            }
        }
        return left.toString();
    }

    private static Set<Long> threads() {
        return Thread.getAllStackTraces().keySet().stream()
                .map(Thread::getId)
                .collect(Collectors.toSet());
    }

    private static Set<Long> processes() {
        return ProcessHandle.current()
                .descendants()
                .map(ProcessHandle::pid)
                .collect(Collectors.toCollection(TreeSet::new));
    }

    /** What all threads of this JVM are doing. */
    static String stacks() {
        StringBuilder text = new StringBuilder();
        Thread.getAllStackTraces()
                .forEach(
                        (thread, stack) -> {
                            text.append(thread).append('\n');
                            for (StackTraceElement element : stack) {
                                text.append("    at ").append(element).append('\n');
                            }
                        });
        return text.toString();
    }

    /** What it did, and how to run it again. */
    @Override
    public synchronized String toString() {
        return String.format(
                "soak %s (-Dtest.soak.seed=%d -Dtest.soak.seconds=%d, round %d): %s",
                name, SEED, SECONDS, round, counts);
    }
}
