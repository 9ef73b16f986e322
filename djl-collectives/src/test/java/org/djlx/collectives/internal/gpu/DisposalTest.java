// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.gpu;

import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicBoolean;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(60)
class DisposalTest {

    private static final Duration LONG = Duration.ofSeconds(30);

    /** A free that blocks, as in the driver, does not block the destroying thread. */
    @Test
    void blockedDisposalDoesNotBlockTheCaller() {
        CountDownLatch inTheWay = new CountDownLatch(1);
        AtomicBoolean freed = new AtomicBoolean();
        Disposal.run(
                "what something is in the way of",
                () -> {
                    try {
                        inTheWay.await();
                    } catch (InterruptedException e) {
                        throw new AssertionError(e);
                    }
                    freed.set(true);
                });
        assertFalse(Disposal.await(Duration.ofMillis(1)));
        assertFalse(freed.get());
        inTheWay.countDown();
        assertTrue(Disposal.await(LONG));
        assertTrue(freed.get());
    }

    @Test
    void errorsAreNotThrown() {
        Disposal.run(
                "what cannot be",
                () -> {
                    throw new IllegalStateException("no");
                });
        assertTrue(Disposal.await(LONG));
    }
}
