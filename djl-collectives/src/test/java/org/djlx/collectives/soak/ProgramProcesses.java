// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.soak;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.djlx.collectives.RankProcesses;

/** Processes that run {@link ProgramMain}; the test's end of it. For one thread. */
final class ProgramProcesses implements AutoCloseable {

    private static final int PATIENCE_SECONDS = 120;
    private static final Pattern CALLS = Pattern.compile("calls: (\\d+)");

    private final RankProcesses ranks;
    private final List<Integer> alive;
    private int generation;

    /** Starts as many ranks, and waits until they have a group. */
    ProgramProcesses(int worldSize, long seed) throws InterruptedException {
        ranks = new RankProcesses(worldSize, ProgramMain.class, "" + seed);
        alive = new ArrayList<>(IntStream.range(0, worldSize).boxed().toList());
        try {
            begin();
        } catch (RuntimeException | Error | InterruptedException e) {
            close();
            throw e;
        }
    }

    List<Integer> alive() {
        return alive;
    }

    private void begin() throws InterruptedException {
        String members = alive.stream().map(String::valueOf).collect(Collectors.joining(","));
        ranks.store()
                .set(ProgramMain.membersKey(generation), members.getBytes(StandardCharsets.UTF_8));
        for (int rank : alive) {
            awaitLine(rank, "ready " + generation);
        }
    }

    /** Waits until a rank has printed a line that begins with a text; returns the line. */
    private String awaitLine(int rank, String begin) throws InterruptedException {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_SECONDS);
        while (true) {
            boolean ended = !ranks.process(rank).isAlive();
            String output = ranks.output(rank);
            // Only whole lines.
            for (String line : output.substring(0, output.lastIndexOf('\n') + 1).split("\n")) {
                if (line.startsWith(begin)) {
                    return line;
                }
            }
            for (int other : alive) {
                Process process = ranks.process(other);
                if (!process.isAlive() && process.exitValue() != 0) {
                    throw new AssertionError(
                            "rank " + other + " has failed:\n" + ranks.output(other));
                }
            }
            if (ended || System.nanoTime() - end > 0) {
                throw new AssertionError(
                        String.format(
                                "rank %d %s and did not print '%s'; the ranks printed:%n%s",
                                rank,
                                ended ? "has ended" : "hangs",
                                begin,
                                alive.stream()
                                        .map(other -> other + ":\n" + ranks.output(other))
                                        .collect(Collectors.joining("\n"))));
            }
            Thread.sleep(20);
        }
    }

    void signal(String signal, int rank) throws InterruptedException {
        try {
            String pid = "" + ranks.process(rank).pid();
            assertEquals(0, new ProcessBuilder("kill", "-" + signal, pid).start().waitFor());
        } catch (IOException e) {
            throw new AssertionError(e);
        }
    }

    /** Kills a rank. */
    void kill(int rank) throws InterruptedException {
        signal("KILL", rank);
        alive.remove(Integer.valueOf(rank));
    }

    /** Checks that the others learn who is dead; they go on as a new group. */
    void goOnWithout(int dead) throws InterruptedException {
        long pid = ranks.process(dead).pid();
        for (int rank : alive) {
            String failure = awaitLine(rank, "failed " + generation + ": ");
            // A sub-group of others knows no more than that one of them has left because of it.
            boolean elsewhere =
                    failure.contains("of group 'g" + generation + ".")
                            && failure.contains("destroyed the group");
            // A monitored barrier names the ranks that are missing.
            elsewhere |= failure.contains(": monitoredBarrier") && failure.contains("have left");
            assertTrue(elsewhere || failure.contains("(pid " + pid + ") has ended"), failure);
        }
        generation++;
        begin();
    }

    /** Lets the ranks come to an end; returns how many calls they have issued. */
    long stop() throws InterruptedException {
        ranks.store().set(ProgramMain.STOP, new byte[0]);
        long calls = 0;
        for (int rank : alive) {
            Matcher matcher = CALLS.matcher(awaitLine(rank, "calls: "));
            assertTrue(matcher.matches());
            calls += Long.parseLong(matcher.group(1));
            assertTrue(ranks.process(rank).waitFor(PATIENCE_SECONDS, TimeUnit.SECONDS));
            assertEquals(0, ranks.process(rank).exitValue(), () -> ranks.output(rank));
        }
        return calls;
    }

    @Override
    public void close() {
        ranks.close();
    }
}
