// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.pool;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.regex.Pattern;
import org.djlx.collectives.RankProcesses;
import org.djlx.collectives.SharedFiles;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Pools of three processes, which a {@link RankPoolMain} each runs. */
@Timeout(120)
@Tag("slow")
class RankPoolProcessTest {

    private Set<Path> sharedFiles;

    @BeforeEach
    void lookAtSharedFiles() {
        sharedFiles = SharedFiles.now();
    }

    @AfterEach
    void leavesNoSharedFiles() {
        assertEquals(sharedFiles, SharedFiles.now());
    }

    private static RankProcesses ranks(String scenario) {
        return new RankProcesses(3, RankPoolMain.class, scenario);
    }

    private static void awaitOutput(RankProcesses ranks, int rank, String text)
            throws InterruptedException {
        while (!ranks.output(rank).contains(text)) {
            assertTrue(ranks.process(rank).isAlive(), () -> ranks.output(rank));
            Thread.sleep(20);
        }
    }

    private static void assertSays(RankProcesses ranks, int rank, String text) {
        String output = ranks.output(rank);
        assertTrue(
                output.contains(text), () -> "rank " + rank + " says no " + text + ": " + output);
    }

    /** Checks that a rank of a failed pool has closed its worker first. The log is in between. */
    private static void assertFreed(RankProcesses ranks, int rank) {
        String output = ranks.output(rank);
        int freed = output.indexOf("freed\n");
        assertTrue(freed >= 0 && output.indexOf("ended: Optional[", freed) > 0, output);
    }

    @Test
    void servesAlsoAfterLongIdleness() throws Exception {
        try (RankProcesses ranks = ranks("serve")) {
            awaitOutput(ranks, 0, "idle");
            Duration before = cpuTime(ranks.process(1));
            awaitOutput(ranks, 0, "late");
            Duration used = cpuTime(ranks.process(1)).minus(before);
            ranks.awaitSuccess();
            // Of 7 seconds, in which the JVM may still compile what has run before.
            assertTrue(used.toMillis() < 1500, "idle, it has used " + used);
            for (int rank = 0; rank < 3; rank++) {
                assertSays(ranks, rank, "freed\nended: Optional.empty");
            }
        }
    }

    private static Duration cpuTime(Process process) {
        return process.info().totalCpuDuration().orElseThrow();
    }

    @Test
    void failsPendingRequestsWithTheReasonOfAnotherProcess() throws Exception {
        try (RankProcesses ranks = ranks("fail")) {
            List<Integer> codes = ranks.await();
            assertEquals(0, codes.get(0), () -> ranks.output(0));
            assertNotEquals(0, codes.get(1));
            assertNotEquals(0, codes.get(2));
            String reason =
                    "pool: rank 1 of 3 failed: java.lang.IllegalStateException: out of luck";
            assertSays(ranks, 0, "failed: " + reason + "\nfailed: " + reason);
            assertSays(ranks, 0, "later: pool failed before this request");
            assertSays(ranks, 0, "start another: " + reason);
            assertSays(ranks, 1, reason);
            // It was in a request, which had nothing to do with the other ranks.
            assertSays(ranks, 2, "hangs");
            assertSays(ranks, 2, "rank 0 has destroyed the group");
            for (int rank = 0; rank < 3; rank++) {
                assertFreed(ranks, rank);
            }
        }
    }

    /** Of a JVM whose ranks are threads: the caller would wait for ever. */
    @ParameterizedTest
    @ValueSource(strings = {"heap", "heap twice"})
    void failsPendingRequestsWhenTheHeapIsUsedUp(String scenario) throws Exception {
        // A small heap, because the JVM collects garbage again and again while the heap is full.
        Map<String, String> environment = Map.of("_JAVA_OPTIONS", "-Xmx96m");
        try (RankProcesses ranks =
                new RankProcesses(1, rank -> environment, RankPoolMain.class, scenario)) {
            ranks.awaitSuccess();
            // Rank 1 fills the heap. Rank 0, a thread of the same JVM, may fail first, and the heap
            // may be too full to copy the error's text.
            String output = ranks.output(0);
            assertTrue(
                    Pattern.compile(
                                    "failed: pool: rank [01] of 2 failed: .*"
                                            + "(OutOfMemoryError|memory ran out before)")
                            .matcher(output)
                            .find(),
                    output);
            assertSays(ranks, 0, "ended");
        }
    }

    @Test
    void failsPendingRequestsWhenAnotherProcessIsKilled() throws Exception {
        try (RankProcesses ranks = ranks("hang")) {
            awaitOutput(ranks, 1, "hangs");
            ranks.process(1).destroyForcibly();
            List<Integer> codes = ranks.await();
            assertEquals(0, codes.get(0), () -> ranks.output(0));
            assertNotEquals(0, codes.get(2));
            assertSays(ranks, 0, "failed: pool: rank ");
            assertSays(ranks, 0, "the process of rank 1 (pid " + ranks.process(1).pid());
            assertSays(ranks, 2, "the process of rank 1 (pid " + ranks.process(1).pid());
        }
    }

    @Test
    void deathWhileIdleReachesRankZero() throws Exception {
        try (RankProcesses ranks = ranks("idle")) {
            awaitOutput(ranks, 0, "idle");
            ranks.process(1).destroyForcibly();
            List<Integer> codes = ranks.await();
            assertEquals(0, codes.get(0), () -> ranks.output(0));
            assertNotEquals(0, codes.get(2));
            // The reason stands there once, and without the exceptions that have carried it.
            assertSays(ranks, 0, "told: pool: rank 1 of 3 failed: recv(");
            assertSays(ranks, 0, "the process of rank 1 (pid " + ranks.process(1).pid());
            assertSays(ranks, 0, "caused by: null");
        }
    }

    @Test
    void endsWithRankZero() throws Exception {
        try (RankProcesses ranks = ranks("idle")) {
            awaitOutput(ranks, 0, "idle");
            ranks.process(0).destroyForcibly();
            List<Integer> codes = ranks.await();
            for (int rank = 1; rank < 3; rank++) {
                assertNotEquals(0, codes.get(rank));
                assertFreed(ranks, rank);
            }
            String output = ranks.output(1) + ranks.output(2);
            assertTrue(output.contains("the process of rank 0 (pid"), output);
        }
    }

    @Test
    void startsOnNoRankIfItCannotOnOne() throws Exception {
        try (RankProcesses ranks = ranks("no-start")) {
            List<Integer> codes = ranks.await();
            for (int rank = 0; rank < 3; rank++) {
                assertNotEquals(0, codes.get(rank));
                assertTrue(!ranks.output(rank).contains("ended"), ranks.output(rank));
            }
            String reason = "pool: rank 2 of 3 failed: java.lang.IllegalStateException: no weights";
            assertSays(ranks, 0, reason);
            assertSays(ranks, 2, reason);
            assertSays(ranks, 0, "freed");
            assertSays(ranks, 1, "freed");
        }
    }
}
