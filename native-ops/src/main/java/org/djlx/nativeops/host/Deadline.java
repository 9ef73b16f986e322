// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.host;

import java.time.Duration;

/** The point in time at which a timeout expires, on the monotonic clock. */
public final class Deadline {

    /** 73 years; the sum of two does not overflow. */
    private static final Duration MAX = Duration.ofNanos(Long.MAX_VALUE / 4);

    private final Duration timeout;
    private final long end;

    private Deadline(Duration timeout) {
        this.timeout = timeout;
        end = System.nanoTime() + (timeout.compareTo(MAX) < 0 ? timeout : MAX).toNanos();
    }

    public static Deadline after(Duration timeout) {
        return new Deadline(Required.argument("the timeout", timeout));
    }

    /** Returns the time left in ns, at least 0. */
    public long remainingNanos() {
        return Math.max(0, end - System.nanoTime());
    }

    /**
     * Returns the time left in milliseconds, at least 1: for socket timeouts, where 0 means no
     * timeout.
     */
    public int remainingMillis() {
        return (int) Math.min(Integer.MAX_VALUE, remainingNanos() / 1_000_000 + 1);
    }

    public boolean isOver() {
        return remainingNanos() == 0;
    }

    /** Returns the timeout this deadline was created with. */
    public Duration timeout() {
        return timeout;
    }
}
