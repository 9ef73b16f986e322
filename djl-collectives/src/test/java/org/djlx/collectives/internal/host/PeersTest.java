// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.host;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.stream.Stream;
import org.djlx.collectives.store.HashStore;
import org.djlx.collectives.store.Store;
import org.djlx.collectives.store.TcpStore;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Detection of dead peers on this host, and of dead hosts. */
@Timeout(60)
class PeersTest {

    private static Peers peers(int rank, Store store, List<RankProcess> processes) {
        return Peers.of("peers", rank, store, processes);
    }

    private static RankProcess ofThisHost(Process process) {
        long pid = process.pid();
        return new RankProcess(Liveness.HOST, pid, Liveness.startTime(pid), Liveness.HOST_NAME);
    }

    @Test
    void processThatEndsIsNamed() throws IOException, InterruptedException {
        Process process = new ProcessBuilder("sleep", "60").start();
        Peers peers = peers(0, new HashStore(), List.of(RankProcess.own(), ofThisHost(process)));
        assertEquals(Optional.empty(), peers.dead());
        process.destroyForcibly().waitFor();
        Optional<String> dead;
        do {
            dead = peers.dead();
            Thread.sleep(5);
        } while (dead.isEmpty());
        assertEquals("the process of rank 1 (pid " + process.pid() + ") has ended", dead.get());
        assertEquals(
                "the process of rank 0 (pid " + process.pid() + ") has ended",
                peers.subset(List.of(1)).dead().orElseThrow());
        assertEquals(Optional.empty(), peers.subset(List.of(0)).dead());
    }

    @Test
    void processesOfOtherHostsAreNotChecked() {
        RankProcess other = new RankProcess("elsewhere", 1, 1, "other");
        Peers peers = peers(0, new HashStore(), List.of(RankProcess.own(), other));
        assertEquals(Optional.empty(), peers.dead());
        assertEquals(Optional.empty(), Peers.none().dead());
    }

    /** Three hosts in one JVM; the connection of one to the store is cut, as if it were dead. */
    private static final class Hosts implements AutoCloseable {
        private final List<TcpStore> stores = new ArrayList<>();
        private final List<Peers> peers = new ArrayList<>();

        Hosts() {
            List<RankProcess> processes =
                    Stream.of("A 1 1 node-a", "B 1 1 node-b", "C 1 1 node-c")
                            .map(text -> text.getBytes(StandardCharsets.UTF_8))
                            .map(RankProcess::decoded)
                            .toList();
            for (int rank = 0; rank < 3; rank++) {
                TcpStore.Builder store = TcpStore.builder().setHost("localhost");
                store.setPort(rank == 0 ? 0 : stores.get(0).port()).optServer(rank == 0);
                stores.add(store.build());
            }
            for (int rank = 0; rank < 3; rank++) {
                peers.add(peers(rank, stores.get(rank), processes));
            }
        }

        String awaitDeath(int rank) throws InterruptedException {
            Optional<String> dead = peers.get(rank).dead();
            while (dead.isEmpty()) {
                Thread.sleep(20);
                dead = peers.get(rank).dead();
            }
            return dead.get();
        }

        @Override
        public void close() {
            peers.forEach(Peers::close);
            stores.forEach(TcpStore::close);
        }
    }

    @Test
    @Tag("slow")
    void allRanksNameADeadHost() throws InterruptedException {
        try (Hosts hosts = new Hosts()) {
            hosts.stores.get(2).close();
            for (int rank = 0; rank < 2; rank++) {
                String dead = hosts.awaitDeath(rank);
                assertTrue(
                        dead.startsWith("host node-c (rank 2) has sent no heartbeat for 7 s"),
                        dead);
            }
            // So do the ranks of groups that were split off.
            Peers part = hosts.peers.get(0).subset(List.of(0, 1));
            assertTrue(part.dead().orElse("").contains("node-c"));
        }
    }

    @Test
    void otherHostsLearnTheRankInTheWholeGroup() throws IOException, InterruptedException {
        Process process = new ProcessBuilder("sleep", "60").start();
        List<RankProcess> all =
                List.of(
                        RankProcess.own(),
                        ofThisHost(process),
                        new RankProcess("elsewhere", 1, 1, "other"));
        Store store = new HashStore();
        try (Peers here = peers(0, store, all);
                Peers other = peers(2, store, all)) {
            process.destroyForcibly().waitFor();
            Peers part = here.subset(List.of(1));
            while (part.dead().isEmpty()) {
                Thread.sleep(20);
            }
            Peers self = other.subset(List.of(2)); // without the processes of this host
            Optional<String> dead = self.dead();
            while (dead.isEmpty()) {
                Thread.sleep(20);
                dead = self.dead();
            }
            assertEquals("the process of rank 1 (pid " + process.pid() + ") has ended", dead.get());
        }
    }

    /** A rank that notices the end of a process may destroy the group before its next heartbeat. */
    @Test
    void leavingRankReportsAnEndedProcess() throws InterruptedException {
        Store store = new HashStore();
        HostWatch first = new HostWatch("first", store, 0, "node-b", List.of(1));
        HostWatch second = new HostWatch("second", store, 1, "node-a", List.of(0));
        String end = "the process of rank 2 (pid 7) has ended";
        first.report(end);
        first.close();
        while (second.dead().isEmpty()) {
            Thread.sleep(20);
        }
        assertEquals(end, second.dead().orElseThrow());
        second.close();
    }

    @Test
    void lossOfTheStoreIsReported() throws InterruptedException {
        try (Hosts hosts = new Hosts()) {
            hosts.stores.get(0).close();
            String dead = hosts.awaitDeath(1);
            assertTrue(dead.startsWith("the store of the group is lost"), dead);
        }
    }

    /** A rank that destroys the group, and the store after it, ends nothing. */
    @Test
    @Tag("slow")
    void ranksThatLeaveInOrderAreNotDead() throws InterruptedException {
        try (Hosts hosts = new Hosts()) {
            hosts.peers.get(0).close();
            Thread.sleep(2500); // Two beats, for the others to hear of it.
            hosts.stores.get(0).close();
            for (int i = 0; i < 100; i++) {
                assertEquals(Optional.empty(), hosts.peers.get(1).dead());
                assertEquals(Optional.empty(), hosts.peers.get(2).dead());
                Thread.sleep(100);
            }
        }
    }
}
