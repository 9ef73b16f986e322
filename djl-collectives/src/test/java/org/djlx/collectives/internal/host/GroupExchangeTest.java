// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.host;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveTimeoutException;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.store.HashStore;
import org.djlx.collectives.store.Store;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** A death while ranks meet is found out long before the timeout, here 10 minutes. */
@Timeout(60)
class GroupExchangeTest {

    private static final BackendOptions OPTIONS = new BackendOptions(Duration.ofMinutes(10));

    private final Store store = new HashStore();
    private Process peer;
    private RankProcess process;

    @BeforeEach
    void startPeer() throws Exception {
        peer = new ProcessBuilder("sleep", "1000").start();
        process =
                new RankProcess(
                        Liveness.HOST,
                        peer.pid(),
                        Liveness.startTime(peer.pid()),
                        Liveness.HOST_NAME);
    }

    @AfterEach
    void stop() throws Exception {
        killPeer();
        store.close();
    }

    private void killPeer() throws Exception {
        peer.destroyForcibly().waitFor();
    }

    private GroupExchange group(int worldSize, RankProcess... known) {
        return new GroupExchange(
                "g.0",
                0,
                worldSize,
                store,
                Arrays.asList(known),
                Optional::empty,
                rank -> "rank " + (rank + 2) + " of group 'g'");
    }

    private FutureTask<List<byte[]>> exchange(GroupExchange exchange) {
        FutureTask<List<byte[]>> task =
                new FutureTask<>(() -> exchange.exchange("k", new byte[] {5}, OPTIONS));
        Thread thread = new Thread(task);
        thread.setDaemon(true);
        thread.start();
        return task;
    }

    private void comes(int rank, int worldSize) {
        Introduction self = new Introduction("g.0", worldSize, 1, 0, process, null);
        store.set("k/" + rank, self.before(new byte[] {6}));
    }

    private void assertDeath(FutureTask<?> task) {
        Throwable e = assertThrows(ExecutionException.class, task::get).getCause();
        assertEquals(CollectiveException.class, e.getClass(), e.toString());
        String text = "the process of rank 3 of group 'g' (pid " + peer.pid() + ") has ended";
        assertTrue(e.getMessage().contains(text), e.getMessage());
    }

    @Test
    void deathOfAnArrivedRankIsDetected() throws Exception {
        FutureTask<?> task = exchange(group(3, null, null, null));
        comes(1, 3);
        // Time to see that it lives; the test passes without, too.
        Thread.sleep(300);
        killPeer();
        assertDeath(task);
    }

    /** The ranks of a group that is divided know each other's processes. */
    @Test
    void deathOfAMissingRankIsDetected() throws Exception {
        FutureTask<?> task = exchange(group(2, null, process));
        killPeer();
        assertDeath(task);
    }

    @Test
    void rankMayExitAfterTheExchange() throws Exception {
        GroupExchange exchange = group(2, null, process);
        comes(1, 2);
        killPeer();
        List<byte[]> values = exchange(exchange).get();
        assertEquals(5, values.get(0)[0]);
        assertEquals(6, values.get(1)[0]);
        assertEquals(process, exchange.processes().get(1));
    }

    @Test
    void timeoutNamesRanksOfTheCallersGroup() {
        CollectiveTimeoutException e =
                assertThrows(
                        CollectiveTimeoutException.class,
                        () ->
                                group(2, null, process)
                                        .exchange(
                                                "k",
                                                new byte[0],
                                                new BackendOptions(Duration.ofMillis(10))));
        assertEquals(List.of(1), e.missingRanks());
        assertTrue(e.getMessage().contains("rank 3 of group 'g' of 2"), e.getMessage());
    }

    @Test
    void aRankThatCannotGoOnEndsTheWaitOfTheOthers() {
        FutureTask<List<byte[]>> waiting = exchange(group(2, null, null));
        GroupExchange other =
                new GroupExchange(
                        "g.0", 1, 2, store, Arrays.asList(null, null), Optional::empty, r -> "");
        other.fail("out of memory", List.of("k", "later"));
        Throwable e = assertThrows(ExecutionException.class, waiting::get).getCause();
        assertEquals(CollectiveException.class, e.getClass(), e.toString());
        String text = "rank 3 of group 'g' failed: out of memory";
        assertTrue(e.getMessage().endsWith(text), e.getMessage());
        // Its own value, set afterwards, does not hide the failure.
        assertThrows(
                CollectiveException.class, () -> other.exchange("later", new byte[1], OPTIONS));
        assertTrue(Introduction.in(store.get("later/1")).failure() != null);
    }
}
