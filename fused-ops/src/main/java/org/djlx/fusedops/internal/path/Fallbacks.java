// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.path;

import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicIntegerArray;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.spi.OpType;
import org.djlx.fusedops.FallbackReason;
import org.djlx.fusedops.cost.Path;

/** The paths that are forced in this JVM, and the reasons to fall back to the path NCCL. */
public final class Fallbacks {

    private static final Path[] PATHS = Path.values();

    // Open scopes, by path, and by operator whose fallback is forced.
    private static final AtomicIntegerArray FORCED = new AtomicIntegerArray(PATHS.length);
    private static final Map<String, Integer> FORCED_OPERATORS = new ConcurrentHashMap<>();

    private Fallbacks() {}

    /** Forces a path until the returned action runs. */
    public static Runnable force(Path path) {
        FORCED.incrementAndGet(path.ordinal());
        return () -> FORCED.decrementAndGet(path.ordinal());
    }

    /** Forces an operator's fallback until the returned action runs. */
    public static Runnable force(String operator) {
        FORCED_OPERATORS.merge(operator, 1, Integer::sum);
        return () -> FORCED_OPERATORS.computeIfPresent(operator, (name, n) -> n > 1 ? n - 1 : null);
    }

    public static boolean isForced(Path path) {
        return FORCED.get(path.ordinal()) > 0;
    }

    public static boolean isForced(OpType operator) {
        return isForced(Path.NCCL)
                || !FORCED_OPERATORS.isEmpty() && FORCED_OPERATORS.containsKey(operator.toString());
    }

    static int forced(OpType operator) {
        int forced = isForced(operator) ? 1 << Path.NCCL.ordinal() : 0;
        for (Path path : PATHS) {
            forced |= isForced(path) ? 1 << path.ordinal() : 0;
        }
        return forced;
    }

    /**
     * Returns why an operation over P2P buffers falls back, the same on all ranks; empty if it does
     * not fall back.
     *
     * @param partBytes the number of bytes that a rank sends to a peer; 0 if the path needs no
     *     slots
     */
    public static Optional<FallbackReason> reason(OpType type, ProcessGroup group, long partBytes) {
        if (isForced(type)) {
            return Optional.of(FallbackReason.FORCED);
        }
        if (!group.isP2pAvailable()) {
            return Optional.of(FallbackReason.NO_P2P_BUFFERS);
        }
        return Slots.isPossible(group.requireP2pBuffers(), partBytes)
                ? Optional.empty()
                : Optional.of(FallbackReason.BUFFER_TOO_SMALL);
    }

    /**
     * Counts a call of an operation that is PIPELINED over P2P buffers, and returns whether it
     * falls back to the group's own collective.
     */
    public static boolean fallsBack(OpType type, ProcessGroup group, long partBytes) {
        Optional<FallbackReason> reason = reason(type, group, partBytes);
        Usage.count(type, Path.PIPELINED, reason.orElse(null));
        return reason.isPresent();
    }
}
