// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.trace;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.management.ThreadMXBean;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.LongStream;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveMismatchException;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.TestOperations;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation;
import org.djlx.collectives.store.HashStore;
import org.djlx.collectives.store.Store;
import org.djlx.collectives.trace.FlightEntry.State;
import org.djlx.nativeops.torch.ScalarType;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** The ring, without a backend. */
@Timeout(120)
class FlightRecorderTest {

    private static GroupTrace trace(int size) {
        return trace(size, dump -> {});
    }

    /** A trace whose record goes to a sink, and not to a file. */
    private static GroupTrace trace(int size, GroupTrace.Sink sink) {
        try (Store store = new HashStore()) {
            BackendOptions options = new BackendOptions(Duration.ofSeconds(7));
            GroupContext context = new GroupContext("ring", 1, 3, store, options, null);
            FlightRecorder recorder = new FlightRecorder(context, "test", "job", size);
            return new GroupTrace(recorder, sink, "file", () -> {});
        }
    }

    private static void schedule(GroupTrace trace, Operation operation) {
        TestOperations.schedule(operation, trace::scheduled);
    }

    private static Operation operation(long sequence, long... shape) {
        return TestOperations.create(
                OpType.ALL_REDUCE,
                sequence,
                "ring",
                Duration.ofSeconds(7),
                new Operation.Agreed(ScalarType.BFLOAT16, shape, ReduceOp.MAX, 0));
    }

    private static List<Long> sequences(GroupTrace trace) {
        return trace.recorder().dump().entries().stream()
                .map(FlightEntry::collectiveSeqId)
                .toList();
    }

    @Test
    void dumpNamesJobGroupAndRank() {
        FlightDump dump = trace(4).recorder().dump();
        assertEquals("job", dump.job());
        assertEquals("ring", dump.group());
        assertEquals(1, dump.rank());
        assertEquals(3, dump.worldSize());
        assertEquals("test", dump.backend());
        assertEquals(ProcessHandle.current().pid(), dump.pid());
        assertEquals(List.of(), dump.entries());
        assertEquals(0, dump.lastScheduled());
    }

    @Test
    void anOperationIsScheduledThenStartedThenCompleted() {
        GroupTrace trace = trace(4);
        Operation operation = operation(1, 2, 3);

        schedule(trace, operation);
        FlightEntry scheduled = trace.recorder().dump().entries().get(0);
        assertEquals("test:allReduce", scheduled.profilingName());
        assertEquals("allReduce(bfloat16, (2, 3), MAX)", scheduled.call());
        assertEquals(List.of(2L, 3L), scheduled.sizes());
        assertEquals("bfloat16", scheduled.dtype());
        assertEquals("MAX", scheduled.reduceOp());
        assertEquals(12, scheduled.bytes());
        assertEquals(7000, scheduled.timeoutMs());
        assertEquals(State.SCHEDULED, scheduled.state());
        assertNull(scheduled.timeDiscoveredStartedNs());
        assertNull(scheduled.queuedMs());

        operation.started();
        FlightEntry started = trace.recorder().dump().entries().get(0);
        assertEquals(State.STARTED, started.state());
        assertTrue(started.queuedMs() >= 0);
        assertNull(started.timeDiscoveredCompletedNs());
        assertNull(started.durationMs());

        operation.setAlgorithm("magic");
        operation.ended(null);
        FlightEntry completed = trace.recorder().dump().entries().get(0);
        assertEquals(State.COMPLETED, completed.state());
        assertEquals("magic", completed.algorithm());
        assertNull(completed.exception());
        assertTrue(completed.durationMs() >= 0);
        assertTrue(completed.timeCreatedNs() <= completed.timeDiscoveredStartedNs());
        assertTrue(completed.timeDiscoveredStartedNs() <= completed.timeDiscoveredCompletedNs());
        assertTrue(completed.timeDiscoveredCompletedNs() <= trace.recorder().dump().timeDumpedNs());
    }

    @Test
    void anOperationThatNeverStartsCanFail() {
        GroupTrace trace = trace(4);
        Operation operation = operation(1);
        schedule(trace, operation);
        operation.ended(new CollectiveMismatchException("why"));
        FlightEntry failed = trace.recorder().dump().entries().get(0);
        assertEquals(State.FAILED, failed.state());
        assertEquals("why", failed.exception());
        assertNotNull(failed.timeDiscoveredCompletedNs());
        assertNull(failed.timeDiscoveredStartedNs());
        assertNull(failed.durationMs());
    }

    /** Memory may be used up, or a class not loaded, in the middle of a report. */
    @Test
    void reportErrorDoesNotReachTheBackend() {
        GroupTrace trace = trace(4);
        Operation operation = operation(1);
        schedule(trace, operation);
        operation.started();
        operation.ended(
                new CollectiveMismatchException("") {
                    private static final long serialVersionUID = 1L;

                    @Override
                    public String getMessage() {
                        throw new OutOfMemoryError("on purpose");
                    }
                });
        FlightEntry failed = trace.recorder().dump().entries().get(0);
        assertEquals(State.FAILED, failed.state());
    }

    private static CollectiveException fail(GroupTrace trace) {
        CollectiveException failure = new CollectiveException("it broke");
        Operation operation = operation(1);
        schedule(trace, operation);
        operation.ended(failure);
        return failure;
    }

    @ParameterizedTest
    @ValueSource(
            classes = {
                OutOfMemoryError.class,
                IOException.class,
                NoClassDefFoundError.class,
                IllegalStateException.class
            })
    void failedReportDoesNotPreventLaterReports(Class<? extends Throwable> reason) {
        GroupTrace hopeless = trace(4, dump -> throwOneOf(reason));
        fail(hopeless);
        List<String> reasons = new ArrayList<>();
        GroupTrace other = trace(4, dump -> reasons.add(dump.reason()));
        CollectiveException failure = fail(other);
        other.close();
        hopeless.close();
        assertEquals(List.of("it broke"), reasons);
        assertEquals(Optional.of(Path.of("file")), failure.flightRecord());
    }

    private static void throwOneOf(Class<? extends Throwable> type) throws IOException {
        if (type == OutOfMemoryError.class) {
            throw new OutOfMemoryError("on purpose");
        } else if (type == NoClassDefFoundError.class) {
            throw new NoClassDefFoundError("on purpose");
        } else if (type == IllegalStateException.class) {
            throw new IllegalStateException("on purpose");
        }
        throw new IOException("on purpose");
    }

    /** The thread that ends an operation does not wait for the disk. */
    @Test
    void anOperationEndsWhileItsReportIsBeingWritten() throws Exception {
        CountDownLatch ended = new CountDownLatch(1);
        AtomicBoolean written = new AtomicBoolean();
        GroupTrace trace =
                trace(
                        4,
                        dump -> {
                            try {
                                written.set(ended.await(60, TimeUnit.SECONDS));
                            } catch (InterruptedException e) {
                                Thread.currentThread().interrupt();
                            }
                        });
        CollectiveException failure = fail(trace);
        assertEquals("it broke; this rank's flight record: file", failure.getMessage());
        ended.countDown();
        trace.close();
        assertTrue(written.get());
    }

    @Test
    void ringKeepsTheLastRecords() {
        GroupTrace trace = trace(4);
        for (int i = 1; i <= 10; i++) {
            schedule(trace, operation(i));
        }
        assertEquals(List.of(7L, 8L, 9L, 10L), sequences(trace));
        assertEquals(7, trace.recorder().dump().firstRecorded());
        assertEquals(10, trace.recorder().dump().lastScheduled());
    }

    @Test
    void overwrittenOperationChangesNoRecord() {
        GroupTrace trace = trace(2);
        Operation first = operation(1);
        schedule(trace, first);
        schedule(trace, operation(2));
        schedule(trace, operation(3));
        first.started();
        first.ended(null);
        List<FlightEntry> entries = trace.recorder().dump().entries();
        assertEquals(List.of(2L, 3L), sequences(trace));
        assertTrue(entries.stream().allMatch(entry -> entry.state() == State.SCHEDULED));
    }

    @Test
    void aWithdrawnOperationIsForgotten() {
        GroupTrace trace = trace(4);
        schedule(trace, operation(1));
        Operation refused = operation(2);
        schedule(trace, refused);
        TestOperations.withdraw(refused);
        assertEquals(List.of(1L), sequences(trace));
    }

    @Test
    void longShapesAreRecordedInFull() {
        GroupTrace trace = trace(1);
        schedule(trace, operation(1, LongStream.rangeClosed(1, 12).toArray()));
        FlightEntry entry = trace.recorder().dump().entries().get(0);
        assertEquals(LongStream.rangeClosed(1, 12).boxed().toList(), entry.sizes());
        assertEquals(2 * 479_001_600L, entry.bytes());
    }

    @Test
    void dumpsAreConsistentWhileOthersRecord() throws Exception {
        GroupTrace trace = trace(4);
        Object issueLock = new Object();
        AtomicLong issued = new AtomicLong();
        AtomicBoolean enough = new AtomicBoolean();
        Runnable writer =
                () -> {
                    while (!enough.get()) {
                        Operation operation;
                        synchronized (issueLock) {
                            long sequence = issued.incrementAndGet();
                            operation = operation(sequence, sequence);
                            schedule(trace, operation);
                        }
                        operation.started();
                        operation.ended(null);
                    }
                };
        ExecutorService threads = Executors.newFixedThreadPool(2);
        try {
            List<Future<?>> running = List.of(threads.submit(writer), threads.submit(writer));
            long target = 50_000;
            for (int dumps = 0; dumps < 5_000 || issued.get() < target; dumps++) {
                assertConsistent(trace.recorder().dump());
            }
            enough.set(true);
            for (Future<?> ended : running) {
                ended.get(60, TimeUnit.SECONDS);
            }
        } finally {
            enough.set(true);
            threads.shutdown();
        }
        List<FlightEntry> last = trace.recorder().dump().entries();
        assertEquals(
                LongStream.rangeClosed(issued.get() - 3, issued.get()).boxed().toList(),
                last.stream().map(FlightEntry::recordId).toList());
        assertTrue(last.stream().allMatch(entry -> entry.state() == State.COMPLETED));
    }

    private static void assertConsistent(FlightDump dump) {
        long before = 0;
        for (FlightEntry entry : dump.entries()) {
            assertTrue(entry.recordId() > before);
            before = entry.recordId();
            // The parts of an entry are of one and the same operation.
            assertEquals(List.of(entry.collectiveSeqId()), entry.sizes());
            assertEquals(2 * entry.collectiveSeqId(), entry.bytes());
            assertEquals(entry.state() == State.COMPLETED, entry.durationMs() != null);
            assertEquals(entry.state() != State.SCHEDULED, entry.queuedMs() != null);
        }
    }

    @Test
    void everyGroupAndRankHasAFileOfItsOwn() {
        List<String> groups =
                List.of(
                        "default",
                        "default.tp",
                        "a b",
                        "a_b",
                        "a/b",
                        "\u00e9".repeat(200),
                        "\u00e8".repeat(200),
                        "x".repeat(300) + ".tp",
                        "x".repeat(300) + ".pp");
        Set<String> files = new HashSet<>();
        for (String group : groups) {
            for (int rank = 0; rank < 2; rank++) {
                String file = FlightRecorder.file(group, rank).getFileName().toString();
                assertTrue(file.length() <= 200, file);
                assertTrue(
                        file.matches("flight-[A-Za-z0-9._-]+-rank" + rank + "-pid\\d+.json"), file);
                assertTrue(files.add(file), file);
            }
        }
    }

    /** It is one object, small beside the operation and its work. */
    @Test
    void recordingAllocatesLittle() {
        ThreadMXBean threads = (ThreadMXBean) ManagementFactory.getThreadMXBean();
        GroupTrace trace = trace(100);
        Operation operation = operation(1, 2, 3);
        long allocated = 0;
        int rounds = 10_000;
        for (int half = 0; half < 2; half++) { // The first loads the classes.
            long before = threads.getCurrentThreadAllocatedBytes();
            for (int i = 0; i < rounds; i++) {
                schedule(trace, operation);
                operation.started();
                operation.setAlgorithm("magic");
                operation.ended(null);
            }
            allocated = threads.getCurrentThreadAllocatedBytes() - before;
        }
        assertTrue(allocated <= 100L * rounds, allocated + " bytes in " + rounds + " operations");
    }
}
