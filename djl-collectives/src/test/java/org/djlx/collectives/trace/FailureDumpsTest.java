// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.trace;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.Queue;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveTimeoutException;
import org.junit.jupiter.api.Test;

/** Which failures are written, and when; the time passes when the test says so. */
class FailureDumpsTest {

    private final List<String> written = new ArrayList<>();
    private final Queue<Runnable> intervals = new ArrayDeque<>();
    private final FailureDumps dumps =
            new FailureDumps(failure -> written.add(failure.message()), intervals::add);

    private void message(String name) {
        failed(new CollectiveTimeoutException(name, List.of()), true);
    }

    private CollectiveException collective(String name, Throwable cause) {
        CollectiveException failure = new CollectiveException(name, cause);
        failed(failure, false);
        return failure;
    }

    private void failed(CollectiveException failure, boolean isMessage) {
        dumps.failed(new FailureDumps.Failure(failure, failure.getMessage(), isMessage));
    }

    private void passInterval() {
        intervals.remove().run();
    }

    private void assertWritten(String... expected) {
        assertEquals(List.of(expected), written);
    }

    @Test
    void oneFailureIsWrittenOnceAndAtOnce() {
        message("a");
        assertWritten("a");
        passInterval();
        assertWritten("a");
        assertEquals(0, intervals.size());
        dumps.close();
        assertWritten("a");
    }

    @Test
    void aFailureLongAfterAnotherIsWrittenAtOnce() {
        message("a");
        passInterval();
        message("b");
        assertWritten("a", "b");
    }

    @Test
    void lastFailureOfEachIntervalIsWritten() {
        message("a");
        message("b");
        message("c");
        assertWritten("a");
        passInterval();
        assertWritten("a", "c");
        message("d");
        assertWritten("a", "c");
        passInterval();
        assertWritten("a", "c", "d");
        passInterval();
        assertWritten("a", "c", "d");
        assertEquals(0, intervals.size());
    }

    @Test
    void failedCollectiveIsWrittenAtOnceOncePerInterval() {
        message("a");
        message("b");
        collective("c", null);
        assertWritten("a", "c");
        passInterval(); // What the message waited with, is in the record of the collective.
        assertWritten("a", "c");
        // It did not break the group: but neither does it write all the time.
        collective("d", null);
        collective("e", null);
        assertWritten("a", "c", "d");
        passInterval();
        assertWritten("a", "c", "d", "e");
    }

    @Test
    void followUpFailuresOfACollectiveAreNotWritten() {
        CollectiveException reason = collective("a", null);
        collective("b", reason);
        failed(new CollectiveException("c", reason), true);
        failed(reason, false);
        passInterval();
        collective("d", reason);
        dumps.close();
        assertWritten("a");
    }

    @Test
    void destroyWritesThePendingRecordAndEndsWriting() {
        message("a");
        message("b");
        dumps.close();
        assertWritten("a", "b");
        message("c");
        collective("d", null);
        passInterval();
        dumps.close();
        assertWritten("a", "b");
    }
}
