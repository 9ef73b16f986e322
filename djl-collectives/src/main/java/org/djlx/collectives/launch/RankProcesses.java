// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.launch;

import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.djlx.collectives.launch.Nodes.Result;

/**
 * The processes of a running job. {@link #close} and a shutdown hook (SIGTERM, SIGINT) stop them
 * and their child processes. If the JVM dies without running its hooks, the guards of the ranks'
 * {@link Sessions} kill the processes.
 */
final class RankProcesses implements AutoCloseable {

    /** Queued by {@link #giveUp}, in place of the index of a process that has exited. */
    private static final int GIVEN_UP = -1;

    /** The exit code of a process that SIGPIPE ended. */
    private static final int BROKEN_PIPE = 141;

    /** How often the guards are looked at. */
    private static final long GUARD_SECONDS = 1;

    private final int firstRank;
    private final Duration gracePeriod;
    private final PrintStream out;
    private final PrintStream err;
    private final Thread shutdownHook = new Thread(this::stop, "stop-ranks");
    private final List<Process> processes = new ArrayList<>();
    private final List<PrefixedOutput> outputs = new ArrayList<>();
    private final BlockingQueue<Integer> exited = new LinkedBlockingQueue<>();
    private boolean stopping;
    private Result givenUp; // null unless given up

    /** Creates an empty job; its processes have the ranks from the first on. */
    RankProcesses(int firstRank, Duration gracePeriod, PrintStream out, PrintStream err) {
        this.firstRank = firstRank;
        this.gracePeriod = gracePeriod;
        this.out = out;
        this.err = err;
        try {
            Runtime.getRuntime().addShutdownHook(shutdownHook);
        } catch (IllegalStateException e) {
            // The JVM is shutting down: start no process.
            stopping = true;
        }
    }

    /**
     * Starts the next rank; a folder gets a copy of its output, unless null. No-op once the job is
     * being stopped.
     */
    synchronized void start(ProcessBuilder builder, Path logs) throws IOException {
        if (stopping) {
            return;
        }
        int index = processes.size();
        int rank = firstRank + index;
        Process process = builder.start();
        processes.add(process);
        outputs.add(
                PrefixedOutput.start(
                        rank,
                        process.getInputStream(),
                        out,
                        logs == null ? null : logs.resolve("stdout.log"),
                        () -> giveUp(new Result(BROKEN_PIPE, "cannot write to stdout"))));
        outputs.add(
                PrefixedOutput.start(
                        rank,
                        process.getErrorStream(),
                        err,
                        logs == null ? null : logs.resolve("stderr.log"),
                        () -> {}));
        process.onExit().thenRun(() -> exited.add(index));
    }

    /** Makes {@link #await} return while ranks still run, with the code of a result. */
    synchronized void giveUp(Result why) {
        if (givenUp == null) {
            givenUp = why;
            exited.add(GIVEN_UP);
        }
    }

    /**
     * Waits until all ranks have ended, one has failed, or {@link #giveUp} is called.
     *
     * @return 0, the exit code of the first failed rank, or the code of giving up; {@link
     *     Result#isFinal} unless a rank failed by itself
     */
    Result await() throws InterruptedException {
        List<Process> ranks = started();
        for (int running = ranks.size(); running > 0; running--) {
            Integer index = exited.poll(GUARD_SECONDS, TimeUnit.SECONDS);
            while (index == null) {
                killUnguarded(ranks);
                index = exited.poll(GUARD_SECONDS, TimeUnit.SECONDS);
            }
            if (index == GIVEN_UP) {
                return endEarly();
            }
            int code = ranks.get(index).exitValue();
            if (code != 0) {
                return failure(firstRank + index, code, running - 1);
            }
        }
        return Result.stopped(0);
    }

    /** Kills ranks whose guard is gone: they would outlive a killed launcher. */
    private void killUnguarded(List<Process> ranks) throws InterruptedException {
        for (int i = 0; i < ranks.size(); i++) {
            if (!Sessions.isGuarded(ranks.get(i))) {
                say(
                        err,
                        String.format(
                                "the guard of rank %d, a shell in its session, was killed; without"
                                        + " it the rank could outlive the launcher: it is killed",
                                firstRank + i));
                ranks.get(i).toHandle().destroyForcibly();
            }
        }
    }

    private synchronized Result endEarly() {
        say(err, givenUp.reason() + "; stopping all ranks");
        return Result.stopped(givenUp.code());
    }

    /** Reports a failed rank, unless it ended because the job is being stopped. */
    private synchronized Result failure(int rank, int code, int others) {
        if (stopping) {
            return Result.stopped(code);
        }
        String signal = code > 128 ? " (signal " + (code - 128) + ")" : "";
        String failure = "rank " + rank + " exited with code " + code + signal;
        say(err, failure + (others > 0 ? "; stopping " + others + " other rank(s)" : ""));
        return new Result(code, failure);
    }

    static void say(PrintStream err, String message) {
        PrefixedOutput.print(err, ("[launch] " + message).getBytes(StandardCharsets.UTF_8));
    }

    private synchronized List<Process> started() {
        return List.copyOf(processes);
    }

    /** Stops running ranks and waits for their end. */
    private void stop() {
        synchronized (this) {
            stopping = true;
        }
        List<Process> ranks = started();
        try {
            // Not Process.destroy(): it also closes the streams. That would lose the rank's last
            // output, and the end of stdin would halt the rank immediately.
            ranks.forEach(process -> process.toHandle().destroy());
            long deadline = System.nanoTime() + gracePeriod.toNanos();
            for (Process process : ranks) {
                process.waitFor(deadline - System.nanoTime(), TimeUnit.NANOSECONDS);
            }
            for (int i = 0; i < ranks.size(); i++) {
                if (ranks.get(i).isAlive()) {
                    say(
                            err,
                            String.format(
                                    "rank %d still runs %d s after SIGTERM; it is killed",
                                    firstRank + i, gracePeriod.toSeconds()));
                    ranks.get(i).toHandle().destroyForcibly();
                }
            }
            for (Process process : ranks) {
                process.waitFor();
            }
            // Left-over child processes get no SIGTERM: their rank should have ended them.
            for (Process process : ranks) {
                Sessions.end(process.pid());
            }
            PrefixedOutput.finish(outputs);
        } catch (InterruptedException e) {
            ranks.forEach(Process::destroyForcibly);
            Thread.currentThread().interrupt();
        }
    }

    @Override
    public void close() {
        stop();
        try {
            Runtime.getRuntime().removeShutdownHook(shutdownHook);
        } catch (IllegalStateException e) {
            // The JVM is shutting down and runs the hook, so it cannot be removed.
            return;
        }
    }
}
