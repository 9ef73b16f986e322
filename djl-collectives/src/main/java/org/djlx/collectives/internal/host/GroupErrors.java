// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.host;

import ai.djl.engine.EngineException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.ToLongBiFunction;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveMismatchException;
import org.djlx.collectives.CollectiveTimeoutException;
import org.djlx.collectives.spi.Operation;
import org.djlx.nativeops.host.Durations;
import org.djlx.nativeops.host.FailureText;

/**
 * Exceptions for operations that the ranks of a group cannot complete, with the same messages for
 * all backends. A {@code call} is an {@link Operation} (its text names the group) or another
 * description of the call.
 *
 * <p>All methods return the exception; the caller throws it or fails a work with it.
 */
public final class GroupErrors {

    private static final int RESERVE = 1 << 20;
    private static final CollectiveException OUT_OF_MEMORY =
            new CollectiveException(
                    "an operation failed, and memory ran out before the details could be recorded");

    @SuppressWarnings("unused") // Only there to be freed.
    private static byte[] reserve;

    private GroupErrors() {}

    /** Reserves memory for reporting an OutOfMemoryError. Called when a group is created. */
    public static synchronized void prepare() {
        if (reserve == null) {
            reserve = new byte[RESERVE];
        }
    }

    private static synchronized void freeReserve() {
        reserve = null;
    }

    /**
     * A call failed on this rank. Returns the cause if it is a CollectiveException, otherwise an
     * exception that names the call. If memory has run out, frees the reserve. Never throws.
     */
    public static CollectiveException failed(Object call, Throwable cause) {
        if (cause instanceof CollectiveException collective) {
            return collective;
        }
        if (cause instanceof OutOfMemoryError) {
            freeReserve();
        }
        try {
            return new CollectiveException(call + " failed: " + FailureText.of(cause), cause);
        } catch (RuntimeException | Error e) {
            return OUT_OF_MEMORY;
        }
    }

    /**
     * Returns whether a call failed for a local reason, such as a lack of memory: the other ranks
     * make the call, and would wait for this rank. Wrong arguments do not count, because the caller
     * may correct them.
     */
    public static boolean isLocal(Throwable failure) {
        return failure instanceof VirtualMachineError
                || failure instanceof EngineException && !(failure instanceof CollectiveException);
    }

    /** This rank broke the group on purpose, because it could not go on. */
    public static CollectiveException aborted(String group, Throwable cause) {
        return cause instanceof CollectiveException collective
                ? collective
                : failed("group '" + group + "' was aborted, a call", cause);
    }

    /**
     * A call cannot run because an earlier failure has broken the group; the reason becomes the
     * cause.
     */
    public static CollectiveException broken(Object call, CollectiveException reason) {
        return broken(call, "the group", reason);
    }

    /**
     * A call cannot run because an earlier failure has broken a part, such as {@code the group}.
     */
    public static CollectiveException broken(Object call, String part, CollectiveException reason) {
        return new CollectiveException(
                ("%s cannot run: %s is broken by an earlier failure (%s); destroy the group and"
                                + " create a new one")
                        .formatted(call, part, reason.getMessage()),
                reason);
    }

    /** The end of another rank, such as {@link #died}, breaks the group. */
    public static CollectiveException brokenBy(String end) {
        return new CollectiveException(end + "; the group is broken");
    }

    /**
     * Describes that a rank's process has ended. Only its parent process knows whether it was
     * killed or exited.
     */
    public static String died(int rank, long pid) {
        return died("rank " + rank, pid);
    }

    /** Describes that a rank's process has ended. */
    public static String died(String rank, long pid) {
        return "the process of " + rank + " (pid " + pid + ") has ended";
    }

    /** Describes that a rank has destroyed the group. */
    public static String left(int rank) {
        return "rank " + rank + " has destroyed the group";
    }

    /** This rank destroyed the group while a call was running. */
    public static CollectiveException destroyed(Object call) {
        return new CollectiveException(call + " was cancelled: this rank destroyed the group");
    }

    /** This rank destroyed the group; the reason with which all its running operations fail. */
    public static CollectiveException groupDestroyed(String group) {
        return new CollectiveException("this rank destroyed the group '" + group + "'");
    }

    public static IllegalStateException usedAfterDestroy(String group) {
        return new IllegalStateException("the group '" + group + "' has been destroyed");
    }

    /** P2P buffers were used after their group was destroyed. */
    public static IllegalStateException buffersDestroyed() {
        return new IllegalStateException(
                "the group of these P2P buffers has been destroyed; use the buffers of another"
                        + " group");
    }

    /**
     * The calling thread was interrupted while it waited; restores its interrupt flag. The cause
     * may be null.
     */
    public static CollectiveException interrupted(Object call, InterruptedException cause) {
        Thread.currentThread().interrupt();
        return new CollectiveException("interrupted while waiting for " + call, cause);
    }

    /**
     * A call cannot complete because of a peer's end, such as {@code rank 1 has destroyed the
     * group}.
     */
    public static CollectiveException gone(Object call, int rank, String end) {
        return new CollectiveException(call + " cannot complete on rank " + rank + ": " + end);
    }

    /**
     * An operation timed out because of other ranks. The message says what they did not do, such as
     * {@code did not arrive}.
     */
    public static CollectiveTimeoutException timedOut(
            Operation operation, int rank, List<Integer> missing, String omission) {
        return timedOut(operation, rank, missing, omission, null);
    }

    /**
     * An operation timed out because of other ranks. The message says what they did not do, such as
     * {@code did not arrive}. The cause may be null.
     */
    public static CollectiveTimeoutException timedOut(
            Operation operation,
            int rank,
            List<Integer> missing,
            String omission,
            Throwable cause) {
        return new CollectiveTimeoutException(
                "%s timed out on rank %s after %s: %s %s"
                        .formatted(
                                operation,
                                rank,
                                Durations.text(operation.timeout()),
                                ranks(missing),
                                omission),
                missing,
                cause);
    }

    /**
     * An operation timed out. The message names the missing ranks or, if they are unknown, ends
     * with the hint.
     */
    public static CollectiveTimeoutException timedOut(
            Operation operation, List<Integer> missing, String hint) {
        return new CollectiveTimeoutException(
                "%s timed out after %s%s"
                        .formatted(
                                operation,
                                Durations.text(operation.timeout()),
                                missing.isEmpty()
                                        ? hint
                                        : ": " + ranks(missing) + " did not arrive"),
                missing);
    }

    /** The caller's wait for a call timed out; the call itself keeps running. */
    public static CollectiveTimeoutException stillUnderWay(Object call, Duration timeout) {
        return new CollectiveTimeoutException(
                call + " is still running after " + Durations.text(timeout), List.of());
    }

    /** The ranks' calls, encoded as words in rank order, do not match. None of them has run. */
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
     * Checks the sizes of an all-to-all: each rank must send as many bytes as the receiver expects.
     * Throws a CollectiveMismatchException that names all pairs that differ.
     */
    public static void requireSizes(
            Object operation,
            int worldSize,
            ToLongBiFunction<Integer, Integer> sent,
            ToLongBiFunction<Integer, Integer> expected) {
        List<String> mismatches = new ArrayList<>();
        for (int from = 0; from < worldSize; from++) {
            for (int to = 0; to < worldSize; to++) {
                long bytes = sent.applyAsLong(from, to);
                long wanted = expected.applyAsLong(from, to);
                if (bytes != wanted) {
                    mismatches.add(
                            String.format(
                                    "rank %d sends %d bytes to rank %d, which expects %d",
                                    from, bytes, to, wanted));
                }
            }
        }
        if (!mismatches.isEmpty()) {
            throw new CollectiveMismatchException(
                    ("%s: the sizes do not match: %s; a rank must send as many bytes as the"
                                    + " receiver expects")
                            .formatted(operation, String.join("; ", mismatches)));
        }
    }

    /**
     * The ranks' calls, encoded as words as far as known, do not match. Some may have run, so the
     * group is broken.
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
        return ("%s of group '%s' is not the same on all ranks: %s; all ranks must call the same"
                        + " operation with the same element type, shape, reduction and root%s")
                .formatted(call, group, text, byGraphs ? ", all into a graph or none" : "");
    }

    /** Formats ranks as {@code rank 1} or {@code ranks 1, 3}. */
    public static String ranks(List<Integer> ranks) {
        return (ranks.size() == 1 ? "rank " : "ranks ")
                + ranks.toString().replaceAll("[\\[\\]]", "");
    }

    /** Describes that two ranks, named like {@code rank 1}, called barriers of different ranks. */
    public static String otherRanks(String one, List<Integer> named, String other) {
        return ("%s called the barrier of ranks %s, %s one of other ranks; name the same ranks on"
                        + " each of them")
                .formatted(one, named, other);
    }
}
