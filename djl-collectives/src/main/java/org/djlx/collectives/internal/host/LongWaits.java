// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.host;

import java.time.Duration;
import java.util.List;
import org.djlx.collectives.spi.Operation;
import org.djlx.nativeops.host.Durations;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Logs that a rank has been waiting for its peers for a long time. */
public final class LongWaits {

    private static final Logger logger = LoggerFactory.getLogger(LongWaits.class);

    private LongWaits() {}

    /**
     * Logs a wait, once for each operation and only if it {@linkplain Operation#takeWarning is
     * long}.
     */
    public static void warnOnce(
            Operation operation, int rank, List<Integer> missing, long waitedNanos) {
        if (operation.takeWarning(waitedNanos)) {
            String call = operation + " on rank " + rank;
            String ranks = GroupErrors.ranks(missing);
            warn(call, ranks, waitedNanos, operation.timeout(), operation.hint());
        }
    }

    /** Logs a wait for missing ranks, such as {@code rank 1}. */
    public static void warn(Object call, String peers, long waitedNanos, Duration timeout) {
        warn(call, peers, waitedNanos, timeout, "");
    }

    /** Logs a wait, with a remedy to append or an empty text. */
    public static void warn(
            Object call, String peers, long waitedNanos, Duration timeout, String hint) {
        logger.warn(
                "{}: still waiting for {} after {} s; it times out after {}{}",
                call,
                peers,
                Duration.ofNanos(waitedNanos).toSeconds(),
                Durations.text(timeout),
                hint);
    }
}
