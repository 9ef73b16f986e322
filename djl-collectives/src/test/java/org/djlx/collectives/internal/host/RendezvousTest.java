// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.host;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.spi.Operation;
import org.djlx.collectives.store.HashStore;
import org.djlx.nativeops.host.SharedMemory;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Errors about ranks that do not arrive. */
@Timeout(60)
class RendezvousTest {

    private static final int RANKS = 3;

    /**
     * Rank 1 has learnt first that rank 2 is dead, and has destroyed its handle because of that.
     */
    @Test
    void deadRankIsNamedBeforeRanksThatLeftBecauseOfIt() throws Exception {
        Process process = new ProcessBuilder("sleep", "100").start();
        long dead = process.pid();
        long deadStart = Liveness.startTime(dead);
        process.destroyForcibly();
        process.waitFor();
        long self = ProcessHandle.current().pid();
        BackendOptions options = new BackendOptions(Duration.ofSeconds(30));
        try (HashStore store = new HashStore();
                SharedMemory memory =
                        SharedMemory.create("rendezvous", ControlBlock.byteSize(RANKS))) {
            ControlBlock control = new ControlBlock(memory.memory(), RANKS);
            control.setActive(0, self, Liveness.startTime(self));
            control.setActive(1, self, Liveness.startTime(self));
            control.setLeft(1);
            control.setActive(2, dead, deadStart);
            Rendezvous rendezvous = new Rendezvous(control, "g", 0, RANKS);
            Operation operation = new GroupContext("g", 0, RANKS, store, options, null).joining();
            rendezvous.begin(operation);
            String message =
                    assertThrows(
                                    CollectiveException.class,
                                    () -> rendezvous.awaitAgreement(operation))
                            .getMessage();
            String end = "rank 2 (pid " + dead + ") has ended without destroying the group";
            assertTrue(message.contains(end), message);
            assertTrue(message.contains("rank 1 has destroyed the group"), message);
        }
    }

    /** A rank that has destroyed the group and exited is not reported as dead. */
    @Test
    void aProcessThatIsOverIsSaidToHaveEnded() throws Exception {
        Process process = new ProcessBuilder("cat").start();
        long start = Liveness.startTime(process.pid());
        try (SharedMemory memory =
                SharedMemory.create("rendezvous", ControlBlock.byteSize(RANKS))) {
            ControlBlock control = new ControlBlock(memory.memory(), RANKS);
            control.setActive(1, process.pid(), start);
            control.setActive(2, process.pid(), start);
            control.setLeft(2);
            Rendezvous rendezvous = new Rendezvous(control, "g", 0, RANKS);
            assertNull(rendezvous.deathOf(1));
            process.getOutputStream().close();
            assertEquals(0, process.waitFor());
            String end = "the process of rank 1 (pid " + process.pid() + ") has ended";
            assertEquals(end + " without destroying the group", rendezvous.deathOf(1));
            assertEquals("rank 2 has destroyed the group", rendezvous.deathOf(2));
            // Told once, though another rank has heard of it elsewhere.
            assertEquals("rank 0 failed: " + end, rendezvous.causeOf("rank 0 failed: " + end));
        }
    }

    /** With numbers of 32 bits, the next two billion waits would not wait. */
    @Test
    void signalsFromBillionsOfOperationsAgoDoNotCount() {
        try (SharedMemory memory =
                SharedMemory.create("rendezvous", ControlBlock.byteSize(RANKS))) {
            ControlBlock control = new ControlBlock(memory.memory(), RANKS);
            Rendezvous zero = new Rendezvous(control, "g", 0, RANKS);
            Rendezvous one = new Rendezvous(control, "g", 1, RANKS);
            long later = (1L << 31) + 6;
            assertFalse(zero.isSignalled(1, 0, later), "never signalled");
            one.signal(0, 0, 5);
            assertTrue(zero.isSignalled(1, 0, 5));
            assertFalse(zero.isSignalled(1, 0, later));
            one.signal(0, 0, later);
            assertTrue(zero.isSignalled(1, 0, later));
        }
    }
}
