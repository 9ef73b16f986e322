// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Predicate;
import java.util.stream.Collectors;
import org.djlx.fusedops.cost.Choice;
import org.djlx.fusedops.cost.Path;
import org.djlx.fusedops.internal.path.Usage;

/**
 * Counts the calls of fused operators in this JVM by operator and path, from {@link
 * FusedOps#countUsage()} until the counter is closed. If ranks are threads, the call of each rank
 * counts. A call is counted when its path is chosen. Thread-safe; several counters may be open.
 */
public final class UsageCounter implements AutoCloseable {

    private final Map<Kind, Long> kinds = new ConcurrentHashMap<>();

    private final Usage.Listener listener =
            (operator, path, reason, choice) ->
                    kinds.merge(new Kind(operator, path, reason, choice), 1L, Long::sum);

    UsageCounter() {
        Usage.add(listener);
    }

    /**
     * The key by which calls are counted.
     *
     * @param reason why the call fell back; null if it did not
     * @param choice the choice of the cost model; null for operators without one
     */
    private record Kind(String operator, Path path, FallbackReason reason, Choice choice) {}

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

    private static void checkNotNull(String role, Object value) {
        if (value == null) {
            throw new IllegalArgumentException(role + " is null");
        }
    }

    /** {@return the number of calls of all fused operators that took a path} */
    public long calls(Path path) {
        checkNotNull("calls: path", path);
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
     */
    public long calls(String operator, Path path) {
        checkNotNull("calls: operator", operator);
        checkNotNull("calls: path", path);
        return sum(kind -> kind.path == path && kind.operator.equals(operator));
    }

    /** {@return the number of calls that fell back for a reason} */
    public long fallbacks(FallbackReason reason) {
        checkNotNull("fallbacks: reason", reason);
        return sum(kind -> kind.reason == reason);
    }

    /** {@return the number of calls of one operator that fell back for a reason} */
    public long fallbacks(String operator, FallbackReason reason) {
        checkNotNull("fallbacks: operator", operator);
        checkNotNull("fallbacks: reason", reason);
        return sum(kind -> kind.reason == reason && kind.operator.equals(operator));
    }

    /** Ends counting; the numbers stay. Idempotent. */
    @Override
    public void close() {
        Usage.remove(listener);
    }
}
