// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.host;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotSame;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.concurrent.locks.LockSupport;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(60)
class FailureTextTest {

    @SuppressWarnings("serial") // is not serialized
    private static final class Hidden extends RuntimeException {

        @Override
        public String toString() {
            throw new IllegalStateException("no text");
        }

        @Override
        public StackTraceElement[] getStackTrace() {
            throw new IllegalStateException("no stack trace");
        }
    }

    @Test
    void exceptionsThatRefuseEverythingHaveText() {
        Hidden hidden = new Hidden();
        assertEquals(Hidden.class.getName(), FailureText.of(hidden));
        Throwable printable = FailureText.printable(hidden);
        assertNotSame(hidden, printable);
        assertEquals("java.lang.RuntimeException: " + Hidden.class.getName(), printable.toString());
        assertEquals(0, printable.getStackTrace().length);
    }

    @SuppressWarnings("serial") // is not serialized
    private static final class Blocking extends RuntimeException {

        @Override
        public String getMessage() {
            while (true) {
                LockSupport.park(); // Not even an interrupt ends it.
            }
        }
    }

    @Test
    void exceptionsThatBlockHaveText() {
        Blocking blocking = new Blocking();
        String name = Blocking.class.getName();
        Thread.currentThread().interrupt();
        assertEquals(name, FailureText.of(blocking));
        assertTrue(Thread.interrupted());
        assertEquals(name, FailureText.message(blocking));
        assertEquals("java.lang.RuntimeException: " + name, FailureText.printable(blocking) + "");
        Throwable outer = new IllegalStateException("outer", blocking);
        assertEquals("outer", FailureText.message(outer));
        assertNotSame(outer, FailureText.printable(outer));
    }
}
