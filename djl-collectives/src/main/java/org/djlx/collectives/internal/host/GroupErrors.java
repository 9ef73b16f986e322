/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.host;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveMismatchException;
import org.djlx.collectives.CollectiveTimeoutException;
import org.djlx.collectives.spi.Operation;

/**
 * The errors with which operations end that the ranks of a group cannot complete: one text for each
 * reason, whatever the backend. A {@code call} is an {@link Operation}, which names its group, or
 * any other text that says what was called.
 *
 * <p>All methods return the exception, and leave it to the caller to throw it or to fail a work
 * with it.
 */
public final class GroupErrors {

    private static final int RESERVE = 1 << 20;
    private static final CollectiveException SPEECHLESS =
            new CollectiveException(
                    "an operation failed, and no memory was left to say which and why");

    @SuppressWarnings("unused") // It is there to be freed.
    private static byte[] reserve;

    private GroupErrors() {}

    /**
     * Sets memory aside for reporting that memory has run out; to be called when a group is
     * created.
     */
    public static synchronized void prepare() {
        if (reserve == null) {
            reserve = new byte[RESERVE];
        }
    }

    private static synchronized void freeReserve() {
        reserve = null;
    }

    /**
     * Something went wrong on this rank while it ran a call. If memory has run out, this frees what
     * was set aside for reporting it. Throws nothing, whatever happens.
     *
     * @param call what failed
     * @param cause why
     * @return the cause, if it says enough by itself, or an exception that names the call
     */
    public static CollectiveException failed(Object call, Throwable cause) {
        if (cause instanceof CollectiveException collective) {
            return collective;
        }
        if (cause instanceof OutOfMemoryError) {
            freeReserve();
        }
        try {
            return new CollectiveException(call + " failed: " + cause, cause);
        } catch (RuntimeException | Error e) {
            return SPEECHLESS;
        }
    }

    /**
     * An earlier operation failed on this rank, after which the ranks may be out of step.
     *
     * @param call what cannot run
     * @param reason with what the earlier operation failed
     * @return the exception, with the reason as its cause
     */
    public static CollectiveException broken(Object call, CollectiveException reason) {
        return broken(call, "the group", reason);
    }

    /**
     * An earlier operation failed on this rank, after which ranks may be out of step.
     *
     * @param call what cannot run
     * @param part what is broken: the group, or a part of it
     * @param reason with what the earlier operation failed
     * @return the exception, with the reason as its cause
     */
    public static CollectiveException broken(Object call, String part, CollectiveException reason) {
        return new CollectiveException(
                call
                        + " cannot run: "
                        + part
                        + " is broken since an earlier operation failed ("
                        + reason.getMessage()
                        + "); destroy the group and create a new one",
                reason);
    }

    /**
     * What became of another rank breaks the group.
     *
     * @param end what became of it, such as {@link #died}
     * @return the exception
     */
    public static CollectiveException brokenBy(String end) {
        return new CollectiveException(end + "; the group is broken");
    }

    /**
     * Tells that a rank's process has ended: whether it was killed or its program was over is not
     * known to others than its parent.
     *
     * @param rank the rank
     * @param pid the process's id
     * @return the text
     */
    public static String died(int rank, long pid) {
        return died("rank " + rank, pid);
    }

    /**
     * Tells that a rank's process has ended.
     *
     * @param rank what the rank is called
     * @param pid the process's id
     * @return the text
     */
    public static String died(String rank, long pid) {
        return "the process of " + rank + " (pid " + pid + ") has ended";
    }

    /**
     * Tells that a rank takes no part any more by its own will.
     *
     * @param rank the rank
     * @return the text
     */
    public static String left(int rank) {
        return "rank " + rank + " has destroyed the group";
    }

    /**
     * This rank destroyed the group before a call had ended.
     *
     * @param call what was ended
     * @return the exception
     */
    public static CollectiveException destroyed(Object call) {
        return new CollectiveException(call + " was ended: this rank destroyed the group");
    }

    /**
     * This rank destroyed the group: the reason why all ends that is under way.
     *
     * @param group the group's name
     * @return the exception
     */
    public static CollectiveException groupDestroyed(String group) {
        return new CollectiveException("this rank destroyed the group '" + group + "'");
    }

    /**
     * Something is called on a group that this rank has destroyed.
     *
     * @param group the group's name
     * @return the exception
     */
    public static IllegalStateException usedAfterDestroy(String group) {
        return new IllegalStateException("the group '" + group + "' has been destroyed");
    }

    /**
     * P2P buffers are used after this rank destroyed their group.
     *
     * @return the exception
     */
    public static IllegalStateException buffersDestroyed() {
        return new IllegalStateException(
                "the group of these P2P buffers has been destroyed; get those of another");
    }

    /**
     * The calling thread was interrupted while it waited; this sets its flag again.
     *
     * @param call what it waited for
     * @param cause what told it, or null
     * @return the exception
     */
    public static CollectiveException interrupted(Object call, InterruptedException cause) {
        Thread.currentThread().interrupt();
        return new CollectiveException("interrupted while waiting for " + call, cause);
    }

    /**
     * A rank on which a call depends takes no part any more.
     *
     * @param call what cannot complete
     * @param rank this rank
     * @param end what became of the other, such as {@code rank 1 has destroyed the group}
     * @return the exception
     */
    public static CollectiveException gone(Object call, int rank, String end) {
        return new CollectiveException(call + " cannot complete on rank " + rank + ": " + end);
    }

    /**
     * Other ranks did not do their part before the deadline.
     *
     * @param operation the operation
     * @param rank this rank
     * @param missing the ranks that did not
     * @param omission what they did not do, such as {@code did not arrive}
     * @return the exception
     */
    public static CollectiveTimeoutException timedOut(
            Operation operation, int rank, List<Integer> missing, String omission) {
        return timedOut(operation, rank, missing, omission, null);
    }

    /**
     * Other ranks did not do their part before the deadline.
     *
     * @param operation the operation
     * @param rank this rank
     * @param missing the ranks that did not
     * @param omission what they did not do, such as {@code did not arrive}
     * @param cause what says so, or null
     * @return the exception
     */
    public static CollectiveTimeoutException timedOut(
            Operation operation,
            int rank,
            List<Integer> missing,
            String omission,
            Throwable cause) {
        return new CollectiveTimeoutException(
                operation
                        + " timed out on rank "
                        + rank
                        + " after "
                        + operation.timeout()
                        + ": "
                        + ranks(missing)
                        + " "
                        + omission,
                missing,
                cause);
    }

    /**
     * An operation did not end before the deadline, whoever watches over it on this rank.
     *
     * @param operation the operation
     * @param missing the ranks that have not called it; empty if they are not known
     * @param hint what follows where they are not
     * @return the exception
     */
    public static CollectiveTimeoutException timedOut(
            Operation operation, List<Integer> missing, String hint) {
        return new CollectiveTimeoutException(
                operation
                        + " timed out after "
                        + operation.timeout()
                        + (missing.isEmpty() ? hint : ": " + ranks(missing) + " did not arrive"),
                missing);
    }

    /**
     * A call had not ended when its caller would not wait any longer; it goes on.
     *
     * @param call what was waited for
     * @param timeout how long it was
     * @return the exception
     */
    public static CollectiveTimeoutException stillUnderWay(Object call, Duration timeout) {
        return new CollectiveTimeoutException(
                call + " was still under way after " + timeout, List.of());
    }

    /**
     * The ranks called different operations.
     *
     * @param operation this rank's operation
     * @param group the group's name
     * @param calls the words of what each rank called, in rank order
     * @return the exception
     * @see CallWords
     */
    public static CollectiveMismatchException disagreement(
            Operation operation, String group, List<long[]> calls) {
        Map<Integer, long[]> byRank = new TreeMap<>();
        for (int rank = 0; rank < calls.size(); rank++) {
            byRank.put(rank, calls.get(rank));
        }
        return new CollectiveMismatchException(
                differences("operation #" + operation.sequence(), group, byRank));
    }

    /**
     * The ranks called different operations, which was found after some had run theirs: the group
     * is broken.
     *
     * @param call which of their calls it was
     * @param group the group's name
     * @param calls the words of what each rank called, by its number, as far as that is known
     * @return the exception
     * @see CallWords
     */
    public static CollectiveMismatchException outOfStep(
            String call, String group, Map<Integer, long[]> calls) {
        return new CollectiveMismatchException(differences(call, group, calls), true);
    }

    private static String differences(String call, String group, Map<Integer, long[]> calls) {
        Map<String, List<Integer>> callers = new TreeMap<>();
        calls.forEach(
                (rank, words) ->
                        callers.computeIfAbsent(
                                        CallWords.describe(words), called -> new ArrayList<>())
                                .add(rank));
        boolean byGraphs =
                calls.values().stream().map(CallWords::isCaptured).distinct().count() > 1;
        StringBuilder text = new StringBuilder();
        callers.forEach(
                (called, ranks) ->
                        text.append(text.length() == 0 ? "" : "; ")
                                .append(ranks(ranks))
                                .append(" called ")
                                .append(called));
        return call
                + " of group '"
                + group
                + "' is not the same on all ranks: "
                + text
                + "; all ranks must call the same operation with the same element type, shape,"
                + " reduction and root"
                + (byGraphs ? ", all into a graph or none" : "");
    }

    /**
     * Names ranks.
     *
     * @param ranks the ranks
     * @return a text such as {@code rank 1} or {@code ranks 1, 3}
     */
    public static String ranks(List<Integer> ranks) {
        return (ranks.size() == 1 ? "rank " : "ranks ")
                + ranks.toString().replaceAll("[\\[\\]]", "");
    }
}
