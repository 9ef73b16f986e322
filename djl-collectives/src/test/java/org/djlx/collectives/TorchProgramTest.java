// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.store.HashStore;
import org.djlx.collectives.store.PrefixStore;
import org.djlx.collectives.store.Store;
import org.djlx.collectives.store.TcpStore;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/**
 * A program of torch.distributed ported by the tables of docs/process-groups.md, four ranks, with
 * results computed by hand. TorchTrainingTest of samples has the calls of training.
 */
@Timeout(120)
class TorchProgramTest {

    private static final int RANKS = 4;

    private NDManager manager;
    private ProcessGroup group;
    private int rank;

    private TorchProgramTest on(ProcessGroup group, NDManager manager) {
        this.group = group;
        this.manager = manager;
        rank = group.rank();
        return this;
    }

    private interface Program {
        void run(TorchProgramTest rank);
    }

    private static void onRanks(Program program) {
        List<ProcessGroup> groups = ProcessGroups.local(RANKS);
        ProcessGroups.run(
                groups,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                        program.run(new TorchProgramTest().on(group, manager));
                    }
                    return null;
                });
        groups.forEach(ProcessGroup::destroy);
    }

    private NDArray of(float... values) {
        return manager.create(values);
    }

    private List<NDArray> zeros() {
        return List.of(of(0), of(0), of(0), of(0));
    }

    private static void assertHolds(NDArray array, float... values) {
        assertArrayEquals(values, array.toFloatArray());
    }

    @Test
    void collectives() {
        onRanks(TorchProgramTest::runCollectives);
    }

    private void runCollectives() {
        assertEquals(RANKS, group.worldSize());
        assertEquals("shm", group.backendName());
        NDArray t = of(rank);
        group.allReduce(t, ReduceOp.SUM).await();
        group.allReduce(t, ReduceOp.AVG, false);
        group.allReduce(t, ReduceOp.premulSum(0.5)).await();
        assertHolds(t, 12);
        group.reduce(t, 1, ReduceOp.MAX).await();
        group.broadcast(rank == 2 ? t = of(7) : t, 2).await();
        assertHolds(t, 7);
        List<NDArray> all = zeros();
        group.allGather(all, of(rank)).await();
        assertHolds(all.get(3), 3);
        NDArray whole = manager.zeros(new Shape(RANKS));
        group.allGatherIntoTensor(whole, of(rank)).await();
        assertHolds(whole, 0, 1, 2, 3);
        NDArray part = of(0);
        group.reduceScatter(part, List.of(of(1), of(2), of(3), of(4)), ReduceOp.SUM).await();
        group.reduceScatterTensor(part, whole, ReduceOp.SUM).await();
        assertHolds(part, 4 * rank);
        group.gather(rank == 0 ? all : null, part, 0).await();
        group.scatter(part, rank == 0 ? all : null, 0).await();
        assertHolds(part, 4 * rank);
        List<NDArray> swapped = zeros();
        group.allToAll(swapped, List.of(of(rank), of(rank), of(rank), of(rank))).await();
        assertHolds(swapped.get(2), 2);
        NDArray single = manager.zeros(new Shape(RANKS));
        group.allToAllSingle(single, whole).await();
        assertHolds(single, rank, rank, rank, rank);
        group.allReduceCoalesced(List.of(part, single), ReduceOp.MIN).await();
        assertHolds(single, 0, 0, 0, 0);
        Work barrier = group.barrier();
        barrier.await();
        assertTrue(barrier.duration().isPresent() && barrier.sequence() > 0);
        group.monitoredBarrier(Duration.ofMinutes(1), true);
    }

    @Test
    void messagesAndObjects() {
        onRanks(TorchProgramTest::runMessages);
    }

    private void runMessages() {
        int next = (rank + 1) % RANKS;
        int previous = (rank + 3) % RANKS;
        NDArray received = of(0);
        Work sent = group.send(of(rank), next, 5);
        group.recv(received, previous, 5).await();
        sent.await();
        assertHolds(received, previous);
        List<P2pOp> ring =
                List.of(P2pOp.send(of(rank), next, 0), P2pOp.recv(received, previous, 0));
        group.batchIsendIrecv(ring).forEach(Work::await);
        Work toAny = group.send(of(rank), next, 6);
        group.recvAnySource(received, 6).await();
        toAny.await();
        assertHolds(received, previous);
        ObjectCollectives objects = new ObjectCollectives(group);
        assertEquals(List.of(0, 1, 2, 3), objects.allGatherObject(rank));
        assertEquals("from 1", objects.broadcastObject("from " + rank, 1));
        assertEquals(rank == 0 ? 4 : 0, objects.gatherObject(rank, 0).size());
        assertEquals(rank, objects.<Integer>scatterObjectList(List.of(0, 1, 2, 3), 0));
        if (rank % 2 == 0) {
            objects.sendObjectList(List.of("a", rank), next);
        } else {
            assertEquals(List.of("a", previous), objects.recvObjectList(previous));
        }
    }

    @Test
    void groupsAndMeshes() {
        onRanks(TorchProgramTest::runGroups);
    }

    private void runGroups() {
        BackendOptions options = new BackendOptions(Duration.ofSeconds(90));
        ProcessGroup pair = group.newGroup(List.of(1, 3), "pair", "shm", options);
        assertEquals(rank % 2 == 1, pair.isMember());
        assertEquals(List.of(1, 3), pair.ranks());
        assertEquals(3, pair.globalRank(1));
        assertEquals(1, pair.groupRank(3));
        if (pair.isMember()) {
            assertEquals(options.timeout(), pair.timeout());
            pair.withTimeout(Duration.ofSeconds(80)).barrier().await();
            assertEquals(Optional.empty(), pair.failure());
        }
        DeviceMesh mesh = DeviceMesh.create(group, new int[] {2, 1, 2}, "pp", "dp", "tp");
        assertEquals(rank % 2, mesh.localRank("tp"));
        assertEquals(List.of(rank / 2, 0, rank % 2), mesh.coordinates());
        assertEquals(2, mesh.group("tp").worldSize());
        DeviceMesh flat = mesh.slice("pp", "dp").flatten("pp_dp");
        assertEquals(List.of(rank % 2, rank % 2 + 2), flat.group("pp_dp").ranks());
        ProcessGroup half = group.split(rank / 2, rank);
        half.abort(new IllegalStateException("on purpose"));
        assertTrue(half.failure().orElseThrow().getMessage().contains("on purpose"));
    }

    @Test
    void stores() {
        try (TcpStore server =
                        TcpStore.builder().setHost("localhost").setPort(0).optServer(true).build();
                Store clone = server.newHandle();
                Store own = new HashStore()) {
            for (Store store : List.of(new PrefixStore("job", clone), own)) {
                byte[] value = "v".getBytes(StandardCharsets.UTF_8);
                store.set("key", value);
                store.append("key", value);
                assertEquals(2, store.get("key").length);
                assertEquals(3, store.add("count", 3));
                assertArrayEquals(value, store.compareSet("new", new byte[0], value));
                store.multiSet(List.of("a", "b"), List.of(value, value));
                assertEquals(2, store.multiGet(List.of("a", "b"), Duration.ofSeconds(9)).size());
                store.waitFor(List.of("a"), Duration.ofSeconds(9));
                assertTrue(store.check(List.of("key", "a")) && store.delete("a"));
                assertEquals(4, store.listKeys().size());
                store.queuePush("queue", value);
                assertEquals(1, store.queueLength("queue"));
                assertArrayEquals(value, store.queuePop("queue", Duration.ZERO));
            }
        }
    }
}
