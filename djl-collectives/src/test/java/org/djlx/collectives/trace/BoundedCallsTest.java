// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.trace;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(60)
class BoundedCallsTest {

    @Test
    void callsReturnWhatTheyDoAndThrowWhatTheyThrow() throws Exception {
        BoundedCalls calls = new BoundedCalls("calls", Duration.ofSeconds(30));
        assertEquals(7, calls.call(() -> 7));
        ExecutionException e =
                assertThrows(
                        ExecutionException.class,
                        () ->
                                calls.call(
                                        () -> {
                                            throw new IllegalStateException("no");
                                        }));
        assertEquals("no", e.getCause().getMessage());
    }

    @Test
    void anInterruptDoesNotEndACall() throws Exception {
        BoundedCalls calls = new BoundedCalls("calls", Duration.ofSeconds(30));
        Thread.currentThread().interrupt();
        assertEquals(8, calls.call(() -> 8));
        assertTrue(Thread.interrupted());
    }

    @Test
    void nobodyWaitsForACallThatDoesNotReturn() throws Exception {
        BoundedCalls calls = new BoundedCalls("calls", Duration.ofMillis(50));
        CountDownLatch never = new CountDownLatch(1);
        AtomicBoolean made = new AtomicBoolean();
        try {
            assertThrows(
                    TimeoutException.class,
                    () ->
                            calls.call(
                                    () -> {
                                        never.await();
                                        return null;
                                    }));
            assertThrows(
                    TimeoutException.class,
                    () ->
                            calls.call(
                                    () -> {
                                        made.set(true);
                                        return null;
                                    }));
        } finally {
            never.countDown();
        }
        assertFalse(made.get());
    }
}
