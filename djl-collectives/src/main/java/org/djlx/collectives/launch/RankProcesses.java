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

    private final int firstRank;
    private final Duration gracePeriod;
    private final PrintStream out;
    private final PrintStream err;
    private final Thread shutdownHook = new Thread(this::stop, "stop-ranks");
    private final List<Process> processes = new ArrayList<>();
    private final List<PrefixedOutput> outputs = new ArrayList<>();
    private final BlockingQueue<Integer> exited = new LinkedBlockingQueue<>();
    private boolean stopping;
    private String whyGivenUp;
    private int codeOfGivingUp;

    /**
     * Creates an empty job.
     *
     * @param firstRank the rank of the first process; further processes have the next ranks
     */
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
     * Starts the next rank. No-op once the job is being stopped.
     *
     * @param logs the folder for a copy of its output; null for none
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
                        () -> giveUp("cannot write to stdout", BROKEN_PIPE)));
        outputs.add(
                PrefixedOutput.start(
                        rank,
                        process.getErrorStream(),
                        err,
                        logs == null ? null : logs.resolve("stderr.log"),
                        () -> {}));
        process.onExit().thenRun(() -> exited.add(index));
    }

    /** Makes {@link #await} return a code while ranks still run. */
    synchronized void giveUp(String why, int code) {
        if (whyGivenUp == null) {
            whyGivenUp = why;
            codeOfGivingUp = code;
            exited.add(GIVEN_UP);
        }
    }

    /**
     * The outcome of a job.
     *
     * @param code 0, the exit code of the first failed rank, or the code of giving up
     * @param rankFailed whether a rank failed by itself, before the job was stopped
     */
    record Outcome(int code, boolean rankFailed) {}

    /** Waits until all ranks have ended, one has failed, or {@link #giveUp} is called. */
    Outcome await() throws InterruptedException {
        List<Process> ranks = started();
        for (int running = ranks.size(); running > 0; running--) {
            int index = exited.take();
            if (index == GIVEN_UP) {
                return givenUp();
            }
            int code = ranks.get(index).exitValue();
            if (code != 0) {
                return new Outcome(code, reportFailure(firstRank + index, code, running - 1));
            }
        }
        return new Outcome(0, false);
    }

    private synchronized Outcome givenUp() {
        say(err, whyGivenUp + "; stopping all ranks");
        return new Outcome(codeOfGivingUp, false);
    }

    /** Reports a failed rank; returns false if it ended because the job is being stopped. */
    private synchronized boolean reportFailure(int rank, int code, int others) {
        if (stopping) {
            return false;
        }
        String signal = code > 128 ? " (signal " + (code - 128) + ")" : "";
        String rest = others > 0 ? "; stopping " + others + " other rank(s)" : "";
        say(err, "rank " + rank + " exited with code " + code + signal + rest);
        return true;
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
