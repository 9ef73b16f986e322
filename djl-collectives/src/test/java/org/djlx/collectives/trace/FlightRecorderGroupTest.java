// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.trace;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.stream.Stream;
import javax.management.JMX;
import javax.management.MBeanServer;
import javax.management.ObjectName;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveMismatchException;
import org.djlx.collectives.CollectiveTimeoutException;
import org.djlx.collectives.ObjectCollectives;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.collectives.spi.Backend;
import org.djlx.collectives.spi.BackendFactory;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.spi.Backends;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Support;
import org.djlx.collectives.store.HashStore;
import org.djlx.collectives.store.Store;
import org.djlx.collectives.trace.FlightEntry.State;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** What groups leave on record, when all is well and when not. */
@Timeout(120)
class FlightRecorderGroupTest {

    private static final BackendOptions PATIENT = new BackendOptions(Duration.ofSeconds(60));
    // Of operations only: the ranks must come together to create a group.
    private static final Duration SHORT = Duration.ofMillis(300);

    @TempDir private Path temp;
    private Path directory;
    private NDManager manager;

    @BeforeEach
    void setUp() {
        directory = temp.resolve("not/there/yet");
        System.setProperty(FlightRecorder.DIRECTORY_PROPERTY, directory.toString());
        manager = NDManager.newBaseManager("PyTorch");
    }

    @AfterEach
    void tearDown() {
        System.clearProperty(FlightRecorder.DIRECTORY_PROPERTY);
        System.clearProperty(FlightRecorder.SIZE_PROPERTY);
        manager.close();
    }

    private List<Path> files() throws IOException {
        DumpWriter.flush();
        if (!Files.exists(directory)) {
            return List.of();
        }
        try (Stream<Path> files = Files.list(directory)) {
            return files.sorted().toList();
        }
    }

    private static void destroy(List<ProcessGroup> groups) {
        groups.forEach(ProcessGroup::destroy);
    }

    private static List<FlightDump> dumps(List<ProcessGroup> groups) {
        return groups.stream().map(group -> group.flightRecorder().dump()).toList();
    }

    @Test
    void healthyGroupIsRecordedAndWritesNoFile() throws IOException {
        List<ProcessGroup> groups = ProcessGroups.local("shm", 2, PATIENT);
        ProcessGroups.run(
                groups,
                group -> {
                    group.allReduce(manager.ones(new Shape(2, 3)), ReduceOp.SUM).await();
                    group.allReduce(manager.ones(new Shape(100_000)), ReduceOp.MAX).await();
                    group.barrier().await();
                    return null;
                });
        Work pending = groups.get(0).barrier();
        destroy(groups);
        assertTrue(pending.exception().isPresent());
        assertEquals(List.of(), files());

        for (ProcessGroup group : groups) {
            List<FlightEntry> entries = group.flightRecorder().dump().entries().subList(0, 3);
            assertEquals(
                    List.of(
                            "allReduce(float32, (2, 3), SUM)",
                            "allReduce(float32, (100000), MAX)",
                            "barrier()"),
                    entries.stream().map(FlightEntry::call).toList());
            assertEquals(
                    List.of(24L, 400_000L, 0L), entries.stream().map(FlightEntry::bytes).toList());
            assertTrue(entries.stream().allMatch(entry -> entry.state() == State.COMPLETED));
            assertEquals("one-shot", entries.get(0).algorithm());
            assertEquals("two-shot", entries.get(1).algorithm());
        }
    }

    @Test
    void failedMessageDoesNotPreventTheRecordOfABrokenGroup() throws IOException {
        List<ProcessGroup> groups = ProcessGroups.local("shm", 2, PATIENT);
        try {
            ProcessGroup early = groups.get(0).withTimeout(SHORT);
            Work message = early.recv(manager.ones(new Shape(1)), 1, 0);
            assertThrows(CollectiveTimeoutException.class, message::await);
            String first = FlightDump.read(files().get(0)).reason();
            assertTrue(first.contains("recv"), first);

            assertThrows(CollectiveTimeoutException.class, () -> early.barrier().await());
            String second = FlightDump.read(files().get(0)).reason();
            assertTrue(second.contains("barrier"), second);
        } finally {
            destroy(groups);
        }
    }

    @Test
    void destroyWritesTheLastFailedMessage() throws IOException {
        List<ProcessGroup> groups = ProcessGroups.local("shm", 2, PATIENT);
        try {
            ProcessGroup hasty = groups.get(0).withTimeout(SHORT);
            for (int tag = 0; tag < 2; tag++) {
                Work message = hasty.recv(manager.ones(new Shape(1)), 1, tag);
                assertThrows(CollectiveTimeoutException.class, message::await);
                assertEquals(1, files().size());
            }
            assertThrows(
                    CollectiveTimeoutException.class, () -> hasty.monitoredBarrier(SHORT, true));
        } finally {
            destroy(groups);
        }
        FlightDump dump = FlightDump.read(files().get(0));
        assertTrue(dump.reason().contains("rank 1, of monitoredBarrier"), dump::reason);
        assertEquals(List.of(1), dump.missingRanks());
        assertEquals(3, dump.entries().size());
    }

    @Test
    void messagesOfObjectListsAreNamed() {
        List<ProcessGroup> groups = ProcessGroups.local("shm", 2, PATIENT);
        try {
            ObjectCollectives hasty = new ObjectCollectives(groups.get(0).withTimeout(SHORT));
            String message =
                    assertThrows(CollectiveTimeoutException.class, () -> hasty.recvObjectList(1))
                            .getMessage();
            assertTrue(message.contains("rank 1, of an object list)"), message);
        } finally {
            destroy(groups);
        }
    }

    @Test
    void failedMessagesInABrokenGroupKeepTheRecord() throws IOException {
        List<ProcessGroup> groups = ProcessGroups.local("shm", 2, PATIENT);
        try {
            ProcessGroup early = groups.get(0);
            Work pending = early.recv(manager.ones(new Shape(1)), 1, 0);
            Work barrier = early.withTimeout(SHORT).barrier();
            assertThrows(CollectiveTimeoutException.class, barrier::await);
            for (Work message : List.of(pending, early.send(manager.ones(new Shape(1)), 1, 0))) {
                CollectiveException e = assertThrows(CollectiveException.class, message::await);
                assertEquals(barrier.exception().orElseThrow(), e.getCause());
            }
        } finally {
            destroy(groups);
        }
        FlightDump dump = FlightDump.read(files().get(0));
        assertTrue(dump.reason().contains("barrier"), dump::reason);
        assertEquals(List.of(1), dump.missingRanks());
    }

    @Test
    void asynchronousOperationRunsUntilItsPeersCall() throws InterruptedException {
        List<ProcessGroup> groups = ProcessGroups.local("shm", 2, PATIENT);
        try {
            ProcessGroup early = groups.get(0);
            Work first = early.barrier();
            Work second = early.barrier();
            while (early.flightRecorder().dump().lastStarted() < 1) {
                Thread.sleep(1);
            }
            List<FlightEntry> waiting = early.flightRecorder().dump().entries();
            assertEquals(State.STARTED, waiting.get(0).state());
            assertEquals(State.SCHEDULED, waiting.get(1).state());
            assertEquals(0, early.flightRecorder().dump().lastCompleted());

            groups.get(1).barrier().await();
            first.await();
            assertEquals(1, early.flightRecorder().dump().lastCompleted());
            groups.get(1).barrier().await();
            second.await();
            assertEquals(2, early.flightRecorder().dump().lastCompleted());
        } finally {
            destroy(groups);
        }
    }

    @Test
    void aTimeoutLeavesAFileThatNamesTheMissingRank() throws IOException {
        List<ProcessGroup> groups = ProcessGroups.local("shm", 2, PATIENT);
        try {
            ProcessGroup early = groups.get(0).withTimeout(SHORT);
            NDArray tensor = manager.ones(new Shape(4));
            CollectiveTimeoutException inVain =
                    assertThrows(
                            CollectiveTimeoutException.class,
                            () -> early.allReduce(tensor, ReduceOp.SUM).await());
            CollectiveException broken =
                    assertThrows(CollectiveException.class, () -> early.barrier().await());

            List<Path> files = files();
            assertEquals(1, files.size(), files::toString);
            FlightDump dump = FlightDump.read(files.get(0));
            for (CollectiveException failure : List.of(inVain, broken)) {
                assertEquals(Optional.of(files.get(0)), failure.flightRecord());
                assertEquals( // Once, also where one message quotes the other.
                        2, failure.getMessage().split(files.get(0).toString(), -1).length);
            }
            assertTrue(
                    inVain.getMessage().endsWith("; this rank's flight record: " + files.get(0)),
                    inVain::getMessage);
            assertEquals(
                    "flight-" + early.name() + "-rank0-pid" + dump.pid() + ".json",
                    files.get(0).getFileName().toString());
            assertEquals(List.of(1), dump.missingRanks());
            assertEquals(State.FAILED, dump.entries().get(0).state());
            assertEquals(dump.reason(), dump.entries().get(0).exception());

            FlightFinding alone = FlightAnalysis.of(List.of(dump)).get(0).findings().get(0);
            assertEquals(FlightFinding.Kind.MISSING_DUMP, alone.kind());
            assertEquals(
                    "there is no dump of rank 1; rank 0 timed out waiting for rank 1 in #1"
                            + " allReduce(float32, (4), SUM)",
                    alone.message());

            FlightDump late = groups.get(1).flightRecorder().dump();
            FlightFinding both = FlightAnalysis.of(List.of(dump, late)).get(0).findings().get(0);
            assertEquals(FlightFinding.Kind.BEHIND, both.kind());
            assertEquals(List.of(1), both.ranks());
        } finally {
            destroy(groups);
        }
    }

    @Test
    void analysisNamesTheLateRankNotTheTimedOutRanks() {
        List<ProcessGroup> groups = ProcessGroups.local("shm", 3, PATIENT);
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        if (group.rank() < 2) {
                            Work early = group.withTimeout(SHORT).barrier();
                            assertThrows(CollectiveException.class, early::await);
                        }
                        return null;
                    });
            ProcessGroup late = groups.get(2).withTimeout(SHORT);
            for (int call = 0; call < 2; call++) { // The first may still succeed.
                try {
                    late.barrier().await();
                } catch (CollectiveException e) {
                    assertTrue(e.getMessage().contains("barrier"), e::getMessage);
                }
            }
            FlightAnalysis analysis = FlightAnalysis.of(dumps(groups)).get(0);
            FlightFinding finding = analysis.findings().get(0);
            assertEquals(FlightFinding.Kind.LATE, finding.kind(), analysis::verdict);
            assertEquals(List.of(2), finding.ranks());
            assertTrue(
                    finding.message()
                            .matches(
                                    "rank 2 reached #1 barrier\\(\\) [0-9.]+ s after ranks 0, 1 had"
                                            + " timed out"),
                    finding::message);
            assertTrue(
                    analysis.findings().stream()
                            .noneMatch(other -> other.kind() == FlightFinding.Kind.BEHIND));
        } finally {
            destroy(groups);
        }
    }

    @Test
    void groupsOfOneJobHaveItsIdOnAllRanks() {
        Set<String> jobs = new HashSet<>();
        for (int job = 0; job < 2; job++) {
            List<ProcessGroup> groups = ProcessGroups.local("shm", 3, PATIENT);
            try {
                List<String> ids =
                        ProcessGroups.run(
                                groups,
                                group -> {
                                    ProcessGroup sub = group.newGroup(List.of(2, 0, 1));
                                    ProcessGroup part = sub.split(sub.rank() % 2, 0);
                                    String id = part.flightRecorder().dump().job();
                                    assertEquals(id, sub.flightRecorder().dump().job());
                                    assertEquals(id, group.flightRecorder().dump().job());
                                    return id;
                                });
                assertEquals(1, Set.copyOf(ids).size(), ids::toString);
                jobs.addAll(ids);
            } finally {
                destroy(groups);
            }
        }
        assertEquals(2, jobs.size(), jobs::toString);
    }

    @Test
    void departedPeerBreaksTheGroup() throws IOException {
        List<ProcessGroup> groups = ProcessGroups.local("shm", 2, PATIENT);
        groups.get(1).destroy();
        assertThrows(CollectiveException.class, () -> groups.get(0).barrier().await());
        destroy(groups);
        List<Path> files = files();
        assertEquals(1, files.size(), files::toString);
        FlightDump dump = FlightDump.read(files.get(0));
        assertTrue(dump.reason().contains("rank 1 has destroyed the group"), dump::reason);
        assertEquals(List.of(), dump.missingRanks());
    }

    @Test
    void failedWriteKeepsTheOriginalError() throws IOException {
        Files.createDirectories(directory.getParent());
        Files.createFile(directory);
        List<ProcessGroup> groups = ProcessGroups.local("shm", 2, PATIENT);
        try {
            CollectiveTimeoutException e =
                    assertThrows(
                            CollectiveTimeoutException.class,
                            () -> groups.get(0).withTimeout(SHORT).barrier().await());
            assertEquals(List.of(1), e.missingRanks());
            DumpWriter.flush();
        } finally {
            destroy(groups);
        }
    }

    @Test
    void requestedDumpsShowAMismatch() throws IOException {
        List<ProcessGroup> groups = ProcessGroups.local("shm", 3, PATIENT);
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        group.barrier().await();
                        NDArray tensor = manager.ones(new Shape(group.rank() == 1 ? 5 : 4));
                        CollectiveMismatchException e =
                                assertThrows(
                                        CollectiveMismatchException.class,
                                        () -> group.allReduce(tensor, ReduceOp.SUM).await());
                        assertEquals(Optional.empty(), e.flightRecord());
                        group.barrier().await();
                        return null;
                    });
            assertEquals(List.of(), files());
            FlightFinding finding = FlightAnalysis.of(dumps(groups)).get(0).findings().get(0);
            assertEquals(FlightFinding.Kind.MISMATCH, finding.kind());
            assertEquals(List.of(1), finding.ranks());
            assertEquals(2, finding.sequence());
            assertEquals(
                    "the calls of #2 differ: ranks 0, 2 called allReduce(float32, (4), SUM); rank 1"
                            + " called allReduce(float32, (5), SUM)",
                    finding.message());
        } finally {
            destroy(groups);
        }
    }

    @Test
    void aRequestedDumpIsAFile() throws IOException {
        try (ProcessGroup group = ProcessGroups.local("shm", 1, PATIENT).get(0)) {
            group.barrier().await();
            Path file = temp.resolve("mine.json");
            group.flightRecorder().dump(file);
            FlightDump dump = FlightDump.read(file);
            assertEquals("requested", dump.reason());
            assertEquals(1, dump.lastCompleted());
        }
    }

    @Test
    void rejectedOperationIsNotRecorded() {
        Backends.register("refusing", new RefusingFactory());
        try (ProcessGroup group = ProcessGroups.local("refusing", 1, PATIENT).get(0)) {
            assertThrows(UnsupportedOperationException.class, group::barrier);
            assertEquals(List.of(), group.flightRecorder().dump().entries());
        }
    }

    private static final class RefusingFactory implements BackendFactory {

        @Override
        public String name() {
            return "refusing";
        }

        @Override
        public Support support() {
            return Support.builder().addPlain(OpType.BARRIER).build();
        }

        @Override
        public Backend create(GroupContext context) {
            return new RefusingBackend();
        }
    }

    private static final class RefusingBackend extends Backend {

        @Override
        public String name() {
            return "refusing";
        }

        @Override
        public Support support() {
            return new RefusingFactory().support();
        }

        @Override
        public Device device() {
            return Device.cpu();
        }

        @Override
        public void close() {
            // Holds nothing.
        }
    }

    @Test
    void thePropertySetsTheSize() {
        System.setProperty(FlightRecorder.SIZE_PROPERTY, "3");
        try (ProcessGroup group = ProcessGroups.local("shm", 1, PATIENT).get(0)) {
            for (int i = 0; i < 5; i++) {
                group.barrier().await();
            }
            assertEquals(3, group.flightRecorder().dump().firstRecorded());
            assertEquals(5, group.flightRecorder().dump().lastCompleted());
        }
    }

    @Test
    void invalidRecorderSizeIsIgnored() {
        System.setProperty(FlightRecorder.SIZE_PROPERTY, "0");
        try (ProcessGroup group = ProcessGroups.local("shm", 1, PATIENT).get(0)) {
            group.barrier().await();
            group.barrier().await();
            assertEquals(2, group.flightRecorder().dump().entries().size());
        }
    }

    @Test
    void jmxShowsAGroupUntilItIsDestroyed() throws Exception {
        MBeanServer server = ManagementFactory.getPlatformMBeanServer();
        String awkward = "a,b=\"c\"*";
        ObjectName name =
                new ObjectName(
                        "org.djlx.collectives:type=FlightRecorder,group="
                                + ObjectName.quote(awkward)
                                + ",rank=0");
        ObjectName twin = new ObjectName(name + ",instance=2");
        try (Store store = new HashStore();
                Store other = new HashStore()) {
            ProcessGroup group = ProcessGroups.init("shm", store, awkward, 0, 1, PATIENT);
            ProcessGroup second = ProcessGroups.init("shm", other, awkward, 0, 1, PATIENT);
            try {
                awaitRegistered(server, twin, true);
                group.barrier().await();
                FlightRecorderMXBean bean =
                        JMX.newMXBeanProxy(server, name, FlightRecorderMXBean.class);
                assertEquals(awkward, bean.getGroup());
                assertEquals(0, bean.getRank());
                assertEquals(1, bean.getWorldSize());
                assertEquals("shm", bean.getBackend());
                assertEquals(1, bean.getOperations());
                assertEquals(1, bean.getLastScheduled());
                assertEquals(1, bean.getLastStarted());
                assertEquals(1, bean.getLastCompleted());
                FlightDump dump = FlightDump.parse(bean.dumpJson());
                assertEquals(
                        group.flightRecorder().dump().entries().get(0).call(),
                        dump.entries().get(0).call());
                assertNotNull(server.getMBeanInfo(name).getOperations()[0]);
            } finally {
                group.destroy();
                second.destroy();
            }
        }
        awaitRegistered(server, name, false);
        awaitRegistered(server, twin, false);
    }

    /** Waits for the thread that calls JMX. */
    private static void awaitRegistered(MBeanServer server, ObjectName name, boolean registered)
            throws InterruptedException {
        while (server.isRegistered(name) != registered) {
            Thread.sleep(1);
        }
    }
}
