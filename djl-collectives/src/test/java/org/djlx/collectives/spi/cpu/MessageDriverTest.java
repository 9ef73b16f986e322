// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.spi.cpu;

import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Which thread drives messages. */
@Timeout(60)
@Tag("slow")
class MessageDriverTest {

    private static final int ROUNDS = 5_000;
    private static final long PATIENCE_NANOS = 5_000_000_000L;

    /** One that does not end. */
    private static final class Endless extends PendingWork {

        Endless() {
            super(null, List.of());
        }

        @Override
        public void await() {
            throw new UnsupportedOperationException();
        }

        @Override
        void expedite() {
            throw new UnsupportedOperationException();
        }
    }

    /** One message at a time; its waiter stops just when the background thread wants to drive. */
    private static final class Racing implements MessageDriver.Engine {

        private final Thread waiter = Thread.currentThread();
        private volatile boolean pending;
        private volatile boolean looked; // whether the background thread has checked for messages
        private int spins;

        @Override
        public boolean pass() {
            if (Thread.currentThread() == waiter) {
                long begin = System.nanoTime();
                while (!looked && System.nanoTime() - begin < 5_000_000) {
                    Thread.onSpinWait();
                }
                for (int i = 0; i < spins; i++) {
                    Thread.onSpinWait();
                }
                waiter.interrupt(); // He stops.
            }
            pending = false;
            return true;
        }

        @Override
        public boolean check() {
            return false;
        }

        @Override
        public boolean hasPending() {
            boolean now = pending;
            looked |= now && Thread.currentThread() != waiter;
            return now;
        }

        @Override
        public void sleep() {
            Thread.yield();
        }

        @Override
        public void fail(Throwable cause) {
            throw new AssertionError(cause);
        }
    }

    /** Throws twice: in a pass, and in failing the messages. */
    private static final class Failing implements MessageDriver.Engine {

        private final CountDownLatch failed = new CountDownLatch(2);
        private volatile boolean pending = true;

        @Override
        public boolean pass() {
            throw new OutOfMemoryError("on purpose");
        }

        @Override
        public boolean check() {
            throw new AssertionError();
        }

        @Override
        public boolean hasPending() {
            return pending;
        }

        @Override
        public void sleep() {
            throw new AssertionError();
        }

        @Override
        public void fail(Throwable cause) {
            boolean last = failed.getCount() == 1;
            pending = !last;
            failed.countDown();
            if (!last) {
                throw new OutOfMemoryError("again");
            }
        }
    }

    @Test
    void theThreadSurvivesErrors() throws Exception {
        for (int i = 0; i < 2; i++) {
            Failing engine = new Failing();
            MessageDriver driver = new MessageDriver(engine, "failing", 0);
            if (i == 0) {
                assertTrue(driver.driveUntil(new Endless()));
            }
            driver.wake();
            assertTrue(engine.failed.await(30, TimeUnit.SECONDS));
            assertFalse(engine.pending);
            driver.close(() -> {});
        }
    }

    /** A message without a waiter, issued just after another thread has stopped driving. */
    @Test
    void operationIssuedWhileADriverStopsIsDriven() {
        Random random = new Random(1);
        Racing engine = new Racing();
        MessageDriver driver = new MessageDriver(engine, "racing", 0);
        try {
            for (int round = 0; round < ROUNDS; round++) {
                engine.looked = false;
                engine.spins = random.nextInt(40);
                engine.pending = true;
                driver.wake();
                if (driver.driveUntil(new Endless())) {
                    assertTrue(Thread.interrupted());
                    engine.pending = true;
                    driver.wake();
                }
                long begin = System.nanoTime();
                while (engine.pending && System.nanoTime() - begin < PATIENCE_NANOS) {
                    Thread.onSpinWait();
                }
                assertFalse(engine.pending, "not driven in round " + round);
            }
        } finally {
            driver.close(() -> {});
        }
    }
}
