// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.shm;

import org.djlx.collectives.internal.cpu.Doorbell;
import org.djlx.collectives.internal.host.ControlBlock;

/** The doorbells of a group's ranks in shared memory, for one rank. */
record ShmDoorbell(ControlBlock control, int rank) implements Doorbell {

    @Override
    public void ring(int peer) {
        control.ring(peer);
    }

    @Override
    public int prepareSleep() {
        return control.prepareSleep(rank);
    }

    @Override
    public void sleep(int value, long nanos) {
        control.sleep(rank, value, nanos);
    }

    @Override
    public void endSleep() {
        control.endSleep(rank);
    }
}
