// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.mpi;

import com.sun.jna.Native;
import org.djlx.nativeops.host.Scratch;

/**
 * A send or receive that was started and has not been freed. Reusable: {@link MpiCommunicator#send}
 * and {@link MpiCommunicator#receive} start it again once it is done. Used by one thread at a time.
 */
public final class MpiRequest {

    private final long slot = Native.malloc(Long.BYTES);
    private boolean done = true;

    /** Creates a request that is not started. Its 8 bytes of native memory are never freed. */
    public MpiRequest() {}

    long start() {
        if (!done) {
            throw new IllegalStateException("the request is in use");
        }
        done = false;
        return slot;
    }

    /** Returns the request to its first state after a call that did not start it. */
    void revoke() {
        done = true;
    }

    /**
     * Lets MPI make progress.
     *
     * @return whether the transfer has ended
     * @throws MpiException if it failed; it has then ended
     */
    public boolean test() {
        if (done) {
            return true;
        }
        Scratch scratch = Scratch.get();
        int result = Mpi.MPI_Test(slot, scratch.slot(0), Mpi.STATUS_IGNORE);
        if (result != Mpi.SUCCESS) {
            done = true;
            Mpi.check("MPI_Test", result);
        }
        done = scratch.getInt(0) != 0;
        return done;
    }

    /** Asks MPI to cancel a receive. {@link #test} tells when it has ended. */
    public void cancel() {
        if (!done) {
            Mpi.check("MPI_Cancel", Mpi.MPI_Cancel(slot));
        }
    }
}
