/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.gpu;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicBoolean;
import org.djlx.collectives.RankProcesses;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(60)
class DisposalTest {

    private static final Duration LONG = Duration.ofSeconds(30);
    private static final int KILLED = 128 + DisposalMain.STATUS;

    /** As the driver does while another GPU waits for the thread that destroys. */
    @Test
    void goesOnWhenItHasReturned() {
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

    @Test
    void exitWaits() throws InterruptedException {
        assertTrue(exit("soon", KILLED).contains("freed"));
    }

    /** Libraries are not taken down under a thread that is in one. */
    @Test
    void exitDoesNotWaitForEver() throws InterruptedException {
        assertFalse(exit("never", DisposalMain.STATUS).contains("freed"));
    }

    private static String exit(String when, int status) throws InterruptedException {
        try (RankProcesses ranks = new RankProcesses(1, DisposalMain.class, when)) {
            assertEquals(List.of(status), ranks.await(), ranks.output(0));
            return ranks.output(0);
        }
    }
}
