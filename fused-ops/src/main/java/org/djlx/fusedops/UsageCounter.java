// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.function.Predicate;
import java.util.stream.Collectors;
import org.djlx.collectives.spi.OpType;
import org.djlx.fusedops.cost.Choice;
import org.djlx.fusedops.cost.Path;

/**
 * Counts the calls of fused operators in this JVM by operator and path, from {@link
 * FusedOps#countUsage()} until the counter is closed. If ranks are threads, the call of each rank
 * counts. A call is counted when its path is chosen. Thread-safe; several counters may be open.
 */
public final class UsageCounter implements AutoCloseable {

    private static final List<UsageCounter> OPEN = new CopyOnWriteArrayList<>();

    private final Map<Kind, Long> kinds = new ConcurrentHashMap<>();

    UsageCounter() {
        OPEN.add(this);
    }

    /**
     * The key by which calls are counted.
     *
     * @param operator the operator's name
     * @param path the path
     * @param reason why the call fell back; null if it did not
     * @param choice the choice of the cost model; null for operators without one
     */
    private record Kind(String operator, Path path, FallbackReason reason, Choice choice) {}

    /** Counts a call on its path; a call with a fallback reason counts on NCCL. */
    static void count(OpType operator, Path path, FallbackReason reason) {
        count(operator, reason == null ? path : Path.NCCL, reason, null);
    }

    /** Counts a matmul; the reason is null unless the matmul fell back. */
    static void count(OpType operator, Choice choice, FallbackReason reason) {
        count(operator, reason == null ? choice.path() : Path.NCCL, reason, choice);
    }

    private static void count(OpType operator, Path path, FallbackReason reason, Choice choice) {
        if (!OPEN.isEmpty()) {
            Kind kind = new Kind(operator.toString(), path, reason, choice);
            OPEN.forEach(counter -> counter.kinds.merge(kind, 1L, Long::sum));
        }
    }

    private long sum(Predicate<Kind> which) {
        return kinds.entrySet().stream()
                .filter(entry -> which.test(entry.getKey()))
                .mapToLong(Map.Entry::getValue)
                .sum();
    }

    /**
     * {@return the paths of matmuls fused with a collective, and why each was chosen} {@link
     * LowContention}, {@link VariableAllToAll}, {@link FusedOps#matmulAllReduce} and {@link
     * FusedOps#allReduceRmsNorm} are not included, because the cost model does not choose their
     * paths.
     */
    public Map<Choice, Long> choices() {
        return kinds.entrySet().stream()
                .filter(entry -> entry.getKey().choice != null)
                .collect(
                        Collectors.toUnmodifiableMap(
                                entry -> entry.getKey().choice, Map.Entry::getValue, Long::sum));
    }

    /** {@return the number of calls on all paths} */
    public long calls() {
        return sum(kind -> true);
    }

    /**
     * {@return the number of calls of all fused operators that took a path}
     *
     * @param path the path
     * @throws IllegalArgumentException if the path is null
     */
    public long calls(Path path) {
        if (path == null) {
            throw new IllegalArgumentException("calls: path is null");
        }
        return sum(kind -> kind.path == path);
    }

    /**
     * {@return the number of calls of one operator that took a path}
     *
     * @param operator the name in traces and errors: {@code allGatherMatmul}, {@code
     *     allGatherScaledMatmul}, {@code matmulReduceScatter}, {@code scaledMatmulReduceScatter},
     *     {@code matmulAllReduce}, {@code allReduceRmsNorm}, {@code lowContentionAllGather}, {@code
     *     lowContentionReduceScatter}, {@code pipelinedAllGather}, {@code
     *     pipelinedProduceAndAllToAll}, {@code allToAllVdev}, {@code allToAllVdev2d} or {@code
     *     allToAllVdev2dOffset}
     * @param path the path
     * @throws IllegalArgumentException if an argument is null
     */
    public long calls(String operator, Path path) {
        if (operator == null || path == null) {
            throw new IllegalArgumentException(
                    "calls: " + (operator == null ? "operator" : "path") + " is null");
        }
        return sum(kind -> kind.path == path && kind.operator.equals(operator));
    }

    /**
     * {@return the number of calls that fell back for a reason}
     *
     * @param reason the reason
     * @throws IllegalArgumentException if the reason is null
     */
    public long fallbacks(FallbackReason reason) {
        if (reason == null) {
            throw new IllegalArgumentException("fallbacks: reason is null");
        }
        return sum(kind -> kind.reason == reason);
    }

    /**
     * {@return the number of calls of one operator that fell back for a reason}
     *
     * @param operator the operator's name, see {@link #calls(String, Path)}
     * @param reason the reason
     * @throws IllegalArgumentException if an argument is null
     */
    public long fallbacks(String operator, FallbackReason reason) {
        if (operator == null || reason == null) {
            throw new IllegalArgumentException(
                    "fallbacks: " + (operator == null ? "operator" : "reason") + " is null");
        }
        return sum(kind -> kind.reason == reason && kind.operator.equals(operator));
    }

    /** Ends counting; the numbers stay. Idempotent. */
    @Override
    public void close() {
        OPEN.remove(this);
    }
}
