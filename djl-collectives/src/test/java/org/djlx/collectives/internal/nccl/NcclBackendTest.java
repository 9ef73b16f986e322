// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.nccl;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.IntStream;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveTimeoutException;
import org.djlx.collectives.NcclBatch;
import org.djlx.collectives.NcclOptions;
import org.djlx.collectives.P2pOp;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.store.HashStore;
import org.djlx.nativeops.cuda.CudaDevice;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Features of {@code nccl} beyond the contract. */
@Tag("gpu")
@Timeout(120)
class NcclBackendTest {

    private static final Duration TIMEOUT = Duration.ofSeconds(20);

    @BeforeEach
    void requireGpus() {
        NcclCases.require(2);
    }

    private static NcclOptions.Builder options() {
        return NcclOptions.builder().optTimeout(TIMEOUT);
    }

    private static Device[] devices() {
        return IntStream.range(0, CudaDevice.count()).mapToObj(Device::gpu).toArray(Device[]::new);
    }

    private static List<ProcessGroup> groups(NcclOptions.Builder options) {
        return groups("nccl", options);
    }

    private static List<ProcessGroup> groups(String backend, NcclOptions.Builder options) {
        return ProcessGroups.local(backend, CudaDevice.count(), options.build());
    }

    private static void destroy(List<ProcessGroup> groups) {
        groups.forEach(ProcessGroup::destroy);
    }

    private static void assertWorks(List<ProcessGroup> groups) {
        ProcessGroups.run(
                groups,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager(group.device())) {
                        NDArray tensor = manager.ones(new Shape(1000));
                        group.allReduce(tensor, ReduceOp.SUM).await();
                        assertEquals(group.worldSize(), tensor.toFloatArray()[999]);
                    }
                    return null;
                });
    }

    @Test
    void oneRankCreatesItsCommunicatorWithItsFirstOperation() {
        NcclOptions options = options().optDevices(Device.gpu(0)).build();
        GroupContext context = new GroupContext("one", 0, 1, new HashStore(), options, null);
        NcclBackend backend = NcclBackend.create(context, options);
        backend.connectEarly();
        boolean isConnected = backend.isConnected();
        backend.close();
        assertFalse(isConnected);
        List<ProcessGroup> groups = ProcessGroups.local("nccl", 1, options);
        try {
            ProcessGroup part = groups.get(0).split(0, 0);
            assertWorks(List.of(part));
            part.destroy();
            assertWorks(groups);
        } finally {
            destroy(groups);
        }
    }

    private static void driveFromOneThread(NcclOptions.Builder options) {
        List<ProcessGroup> groups = groups(options);
        try (NDManager manager = NDManager.newBaseManager()) {
            for (int round = 0; round < 3; round++) {
                List<NDArray> tensors = new ArrayList<>();
                List<Work> works = new ArrayList<>();
                for (ProcessGroup group : groups) {
                    NDManager own = manager.newSubManager(group.device());
                    tensors.add(own.full(new Shape(100_000), (float) (group.rank() + 1)));
                }
                Runnable issue =
                        () -> {
                            for (int rank = 0; rank < groups.size(); rank++) {
                                ProcessGroup group = groups.get(rank);
                                works.add(group.allReduce(tensors.get(rank), ReduceOp.SUM));
                                works.add(group.broadcast(tensors.get(rank), 0));
                            }
                        };
                NcclBatch.run(issue);
                works.forEach(Work::await);
                int n = groups.size();
                for (NDArray tensor : tensors) {
                    assertEquals(n * (n + 1) / 2, tensor.toFloatArray()[99_999]);
                }
            }
        } finally {
            destroy(groups);
        }
    }

    /** Groups with this option use the all-reduces of {@code cuda_p2p}. */
    @Test
    void intraNodeAllReduces() {
        List<ProcessGroup> groups = groups(options().optIntraNodeComm(true));
        try {
            assertEquals("cuda_p2p", groups.get(0).backendName());
            assertWorks(groups);
        } finally {
            destroy(groups);
        }
    }

    @Test
    void oneThreadDrivesAllGpus() {
        driveFromOneThread(options());
        driveFromOneThread(options().optDevices(devices()));
    }

    /** NCCL alone would reorder operations of a group. A rank need not use a batch. */
    @Test
    void batchesKeepTheOrderOfCollectives() {
        List<ProcessGroup> groups = groups(options().optDevices(devices()));
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        IntStream.range(0, 3).forEach(round -> assertOrdered(group));
                        return null;
                    });
        } finally {
            destroy(groups);
        }
    }

    private static void assertOrdered(ProcessGroup group) {
        try (NDManager manager = NDManager.newBaseManager(group.device())) {
            NDArray whole = manager.ones(new Shape(1_000_000));
            NDArray head = whole.get(":1000");
            List<Work> works = new ArrayList<>();
            Runnable calls =
                    () -> {
                        works.add(group.allReduce(head, ReduceOp.SUM));
                        works.add(group.allReduce(whole, ReduceOp.SUM));
                        works.add(group.allReduce(head, ReduceOp.MAX));
                    };
            if (group.rank() % 2 == 0) {
                NcclBatch.run(calls);
            } else {
                calls.run();
            }
            works.forEach(Work::await);
            int n = group.worldSize();
            float[] result = whole.toFloatArray();
            assertEquals(n * n, result[0]);
            assertEquals(n * n, result[999]);
            assertEquals(n, result[1000]);
            assertEquals(n, result[999_999]);
        }
    }

    @Test
    void worksCannotBeAwaitedWithinTheirBatch() {
        List<ProcessGroup> groups = groups(options().optDevices(devices()));
        try (NDManager manager = NDManager.newBaseManager(groups.get(0).device())) {
            NDArray tensor = manager.ones(new Shape(1));
            ProcessGroup hasty =
                    groups.get(0).withTimeout(Duration.ofMillis(400)); // No peer calls it.
            List<Work> works = new ArrayList<>();
            NcclBatch.run(
                    () -> {
                        works.add(hasty.allReduce(tensor, ReduceOp.SUM));
                        assertThrows(IllegalStateException.class, works.get(0)::await);
                        assertFalse(works.get(0).isCompleted());
                    });
        } finally {
            destroy(groups);
        }
    }

    @Test
    void aBatchWhoseCallsFailBreaksItsGroups() {
        List<ProcessGroup> groups = groups(options().optDevices(devices()));
        assertWorks(groups);
        try (NDManager manager = NDManager.newBaseManager(groups.get(0).device())) {
            NDArray tensor = manager.ones(new Shape(1));
            List<Work> works = new ArrayList<>();
            assertThrows(
                    IllegalArgumentException.class,
                    () ->
                            NcclBatch.run(
                                    () -> {
                                        works.add(groups.get(0).allReduce(tensor, ReduceOp.SUM));
                                        groups.get(1).allReduce(null, ReduceOp.SUM);
                                    }));
            String message =
                    assertThrows(CollectiveException.class, works.get(0)::await).getMessage();
            assertTrue(message.contains("a batch could not be started"), message);
            assertThrows(CollectiveException.class, groups.get(0)::barrier);
        } finally {
            destroy(groups);
        }
    }

    /**
     * An abort ends the operations of all these groups; none of them may look successful. So a
     * sub-group's communicator is a split of its parent's.
     */
    @ParameterizedTest
    @ValueSource(strings = {"nccl", "cuda_p2p"})
    void groupsThatShareResourcesFailTogether(String backend) {
        List<ProcessGroup> groups =
                groups(backend, options().optDevices(devices()).optSplitShare(true));
        List<ProcessGroup> children = ProcessGroups.run(groups, group -> group.split(0, 0));
        assertWorks(children);
        ProcessGroup child = children.get(0);
        try (NDManager manager = NDManager.newBaseManager(child.device())) {
            NDArray tensor = manager.ones(new Shape(1));
            ProcessGroup hasty = child.withTimeout(Duration.ofMillis(400));
            Work work = hasty.reduce(tensor, 0, ReduceOp.SUM); // by NCCL; no peer calls it
            assertThrows(CollectiveTimeoutException.class, work::await);
            String message =
                    assertThrows(CollectiveException.class, groups.get(0)::barrier).getMessage();
            assertTrue(message.contains("shares NCCL resources"), message);
        } finally {
            destroy(groups);
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"nccl", "cuda_p2p"})
    void groupsOfAConfigurationAndTheirSubGroupsWork(String backend) {
        NcclOptions.Builder configured =
                options()
                        .optDevices(devices())
                        .optMinCtas(1)
                        .optMaxCtas(2)
                        .optCgaClusterSize(0)
                        .optTrafficClass(0)
                        .optNetName("Socket");
        List<ProcessGroup> groups = groups(backend, configured);
        try {
            assertWorks(groups);
            assertWorks(ProcessGroups.run(groups, group -> group.split(0, 0)));
        } finally {
            destroy(groups);
        }
    }

    @Test
    void timeoutBreaksTheGroupAndANewOneWorks() {
        for (boolean eager : new boolean[] {true, false}) {
            List<ProcessGroup> groups = groups(eager ? options().optDevices(devices()) : options());
            if (eager) {
                assertWorks(groups); // Afterwards, the GPU waits; before, the host waits in NCCL.
            }
            ProcessGroup group = groups.get(0);
            try (NDManager manager = NDManager.newBaseManager(group.device())) {
                NDArray tensor = manager.ones(new Shape(1000));
                Work work =
                        group.withTimeout(Duration.ofMillis(400)).allReduce(tensor, ReduceOp.SUM);
                Work behind = group.allReduce(tensor, ReduceOp.SUM);
                assertThrows(CollectiveTimeoutException.class, work::await);
                CollectiveException e = assertThrows(CollectiveException.class, behind::await);
                assertTrue(e.getMessage().contains("timed out after 400 ms"), e.getMessage());
                long start = System.nanoTime();
                e = assertThrows(CollectiveException.class, group::barrier);
                assertTrue(e.getMessage().contains("timed out"), e.getMessage());
                assertTrue(System.nanoTime() - start < 1_000_000_000L);
            } finally {
                destroy(groups);
            }
            List<ProcessGroup> next = groups(options());
            assertWorks(next);
            destroy(next);
        }
    }

    /** On the group's communicator, it breaks the group; on one of a pair, only its direction. */
    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void messageWithoutAPeerTimesOut(boolean pairs) {
        List<ProcessGroup> groups =
                groups(options().optDevices(devices()).optPairCommunicators(pairs));
        ProcessGroup hasty = groups.get(0).withTimeout(Duration.ofMillis(400));
        try (NDManager manager = NDManager.newBaseManager(groups.get(0).device())) {
            Work work = hasty.recv(manager.ones(new Shape(1)), 1, 0);
            String message =
                    assertThrows(CollectiveTimeoutException.class, work::await).getMessage();
            assertEquals(!pairs, message.contains("optPairCommunicators"), message);
            if (pairs) {
                assertWorks(groups);
            } else {
                assertThrows(CollectiveException.class, groups.get(0)::barrier);
            }
        } finally {
            destroy(groups);
        }
    }

    /** A split waits for the messages on the communicator, and its part carries messages, too. */
    @ParameterizedTest
    @ValueSource(strings = {"nccl", "cuda_p2p"})
    void splitFollowsIssuedMessages(String backend) {
        List<ProcessGroup> groups = groups(backend, options().optDevices(devices()));
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        try (NDManager manager = NDManager.newBaseManager(group.device())) {
                            List<Work> works = new ArrayList<>(exchange(group, manager));
                            ProcessGroup part = group.split(0, -group.rank());
                            works.addAll(exchange(part, manager));
                            works.forEach(Work::await);
                            NDArray received = works.get(3).result().get(0);
                            assertEquals(1, received.min().getFloat());
                        }
                        return null;
                    });
            assertWorks(groups);
        } finally {
            destroy(groups);
        }
    }

    /** Exchanges tensors with the previous and the next rank. */
    private static List<Work> exchange(ProcessGroup group, NDManager manager) {
        int n = group.worldSize();
        NDArray own = manager.ones(new Shape(8 << 20));
        NDArray other = manager.zeros(new Shape(8 << 20));
        return group.batchIsendIrecv(
                List.of(
                        P2pOp.send(own, (group.rank() + 1) % n, 0),
                        P2pOp.recv(other, (group.rank() + n - 1) % n, 0)));
    }

    /** destroy() waits for operations that peers do not call, at most until their timeout. */
    @Test
    void uncalledOperationsFailWhenTheirRankLeaves() {
        List<ProcessGroup> groups = groups(options().optDevices(devices()));
        ProcessGroup hasty = groups.get(0).withTimeout(Duration.ofMillis(400));
        try (NDManager manager = NDManager.newBaseManager(groups.get(0).device())) {
            NDArray tensor = manager.ones(new Shape(1));
            List<Work> works =
                    List.of(
                            hasty.allReduce(tensor, ReduceOp.SUM),
                            hasty.recv(manager.ones(new Shape(1)), 1, 0));
            groups.get(0).destroy();
            for (Work work : works) {
                assertTrue(work.isCompleted());
                String message = assertThrows(CollectiveException.class, work::await).getMessage();
                assertTrue(message.contains("timed out"), message);
            }
        } finally {
            destroy(groups);
        }
    }

    @Test
    void anInterruptedThreadDestroysAGroupAtOnce() {
        List<ProcessGroup> groups = groups(options().optDevices(devices()));
        ProcessGroup patient = groups.get(0).withTimeout(Duration.ofMinutes(10));
        try (NDManager manager = NDManager.newBaseManager(groups.get(0).device())) {
            Work work = patient.allReduce(manager.ones(new Shape(1)), ReduceOp.SUM);
            Thread.currentThread().interrupt();
            groups.get(0).destroy();
            assertTrue(Thread.interrupted());
            String message = assertThrows(CollectiveException.class, work::await).getMessage();
            assertTrue(message.contains("this rank destroyed the group"), message);
        } finally {
            destroy(groups);
        }
    }

    /** Rank 0 lets its stream wait, and destroys the group long before the other ranks call. */
    @Test
    void destroyLetsOperationsEnd() {
        List<ProcessGroup> groups = groups(options().optDevices(devices()));
        assertWorks(groups);
        ProcessGroups.run(
                groups,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager(group.device())) {
                        NDArray tensor = manager.ones(new Shape(8 << 20));
                        Thread.sleep(group.rank() == 0 ? 0 : 300);
                        Work work = group.allReduce(tensor, ReduceOp.SUM);
                        work.blockCurrentStream();
                        NDArray twice = tensor.add(tensor);
                        group.destroy();
                        assertTrue(work.isSuccess(), work.toString());
                        assertEquals(2 * group.worldSize(), twice.min().getFloat());
                        assertEquals(2 * group.worldSize(), twice.max().getFloat());
                    }
                    return null;
                });
    }

    @Test
    void groupsAndTheirSplitsWorkWithOptions() {
        List<ProcessGroup> groups =
                groups(
                        options()
                                .optDevices(devices())
                                .optHighPriorityStream(true)
                                .optSplitShare(true));
        assertWorks(groups);
        List<ProcessGroup> halves =
                ProcessGroups.run(groups, group -> group.split(0, -group.rank()));
        assertWorks(halves);
        destroy(groups);
    }

    /** The host does not wait; later work on the current stream sees the results. */
    @Test
    void nonBlockingWaitOrdersTheCurrentStream() {
        List<ProcessGroup> groups = groups(options().optDevices(devices()).optBlockingWait(false));
        ProcessGroups.run(
                groups,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager(group.device())) {
                        for (int i = 0; i < 20; i++) {
                            NDArray tensor = manager.ones(new Shape(8 << 20));
                            group.allReduce(tensor, ReduceOp.SUM).await();
                            NDArray twice = tensor.add(tensor);
                            tensor.muli(0);
                            float[] expected = {2 * group.worldSize(), 2 * group.worldSize()};
                            assertArrayEquals(
                                    expected, twice.get((8 << 20) - 2 + ":").toFloatArray());
                        }
                    }
                    return null;
                });
        destroy(groups);
    }
}
