// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.host;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotSame;

import org.junit.jupiter.api.Test;

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
}
