// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.trace;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Comparator;
import java.util.List;
import jdk.jfr.Recording;
import jdk.jfr.consumer.RecordedEvent;
import jdk.jfr.consumer.RecordingFile;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.collectives.spi.BackendOptions;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** What the Java Flight Recorder gets to see. */
@Timeout(120)
class CollectiveEventTest {

    private static final String NAME = "org.djlx.Collective";
    private static final BackendOptions OPTIONS = new BackendOptions(Duration.ofSeconds(60));

    @TempDir private Path directory;

    private List<RecordedEvent> record(Runnable body) throws IOException {
        Path file = directory.resolve("recording.jfr");
        try (Recording recording = new Recording()) {
            recording.enable(NAME);
            recording.start();
            body.run();
            recording.stop();
            recording.dump(file);
        }
        return RecordingFile.readAllEvents(file).stream()
                .filter(event -> event.getEventType().getName().equals(NAME))
                .sorted(
                        Comparator.comparing((RecordedEvent event) -> event.getInt("rank"))
                                .thenComparing(event -> event.getLong("sequence")))
                .toList();
    }

    @Test
    void everyOperationOfEveryRankIsAnEvent() throws IOException {
        List<ProcessGroup> groups = ProcessGroups.local("shm", 2, OPTIONS);
        List<RecordedEvent> events;
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            events =
                    record(
                            () ->
                                    ProcessGroups.run(
                                            groups,
                                            group -> {
                                                group.allReduce(
                                                                manager.ones(new Shape(10)),
                                                                ReduceOp.SUM)
                                                        .await();
                                                group.allReduce(
                                                                manager.ones(new Shape(100_000)),
                                                                ReduceOp.SUM)
                                                        .await();
                                                group.broadcast(manager.ones(new Shape(3)), 1)
                                                        .await();
                                                group.barrier().await();
                                                return null;
                                            }));
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
        assertEquals(8, events.size());
        for (int rank = 0; rank < 2; rank++) {
            List<RecordedEvent> own = events.subList(4 * rank, 4 * rank + 4);
            assertEquals(
                    List.of("allReduce", "allReduce", "broadcast", "barrier"),
                    own.stream().map(event -> event.getString("kind")).toList());
            assertEquals(
                    List.of(40L, 400_000L, 12L, 0L),
                    own.stream().map(event -> event.getLong("bytes")).toList());
            assertEquals(
                    List.of(1L, 2L, 3L, 4L),
                    own.stream().map(event -> event.getLong("sequence")).toList());
            assertEquals("one-shot", own.get(0).getString("algorithm"));
            assertEquals("two-shot", own.get(1).getString("algorithm"));
            assertNull(own.get(3).getString("algorithm"));
            for (RecordedEvent event : own) {
                assertEquals(rank, event.getInt("rank"));
                assertEquals(groups.get(0).name(), event.getString("group"));
                assertEquals("completed", event.getString("state"));
                assertTrue(event.getDuration().toNanos() > 0, event::toString);
                assertFalse(event.getDuration("queued").isNegative(), event::toString);
            }
        }
        assertEquals(List.of("DJL Collectives"), events.get(0).getEventType().getCategoryNames());
    }

    @Test
    void failedOperationsAreEventsStartedOrNot() throws IOException {
        List<ProcessGroup> groups = ProcessGroups.local("shm", 2, OPTIONS);
        ProcessGroup hasty = groups.get(0).withTimeout(Duration.ofMillis(300));
        List<RecordedEvent> events;
        try {
            events =
                    record(
                            () -> {
                                Work first = hasty.barrier();
                                Work second = hasty.barrier();
                                assertTrue(awaitFailure(first) && awaitFailure(second));
                            });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
        assertEquals(
                List.of("failed", "failed"),
                events.stream().map(event -> event.getString("state")).toList());
        // The first waited for its timeout, the second was never started.
        assertTrue(events.get(0).getDuration().toMillis() >= 300, () -> events.get(0).toString());
        assertTrue(
                events.get(1).getDuration().compareTo(events.get(0).getDuration()) < 0,
                () -> events.get(1).toString());
    }

    /** It would have a false duration. */
    @Test
    void anOperationThatStartedBeforeTheRecordingIsNoEvent() throws Exception {
        List<ProcessGroup> groups = ProcessGroups.local("shm", 2, OPTIONS);
        List<RecordedEvent> events;
        try {
            Work early = groups.get(0).barrier();
            while (groups.get(0).flightRecorder().dump().lastStarted() < 1) {
                Thread.sleep(1);
            }
            events =
                    record(
                            () -> {
                                groups.get(1).barrier().await();
                                early.await();
                            });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
        assertEquals(List.of(1), events.stream().map(event -> event.getInt("rank")).toList());
    }

    private static boolean awaitFailure(Work work) {
        try {
            work.await();
            return false;
        } catch (CollectiveException e) {
            return true;
        }
    }

    @Test
    void noEventsWithoutARecording() {
        assertFalse(CollectiveEvent.isWanted());
    }
}
