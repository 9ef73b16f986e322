// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.mpi;

import com.sun.jna.Native;
import com.sun.jna.Pointer;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/**
 * Sends and receives that were started and have not all ended: {@link MpiCommunicator#send} and
 * {@link MpiCommunicator#receive} add one. Empty again, and reusable, once all have ended. Used by
 * one thread at a time.
 */
public final class MpiRequests {

    private static final int HANDLES = Long.BYTES; // before them, the flag that MPI sets

    private ByteBuffer bytes;
    private long address;
    private int count;

    public MpiRequests() {
        reserve(4);
    }

    /** Makes room for requests; changes nothing if memory has run out. */
    private void reserve(int capacity) {
        ByteBuffer larger = ByteBuffer.allocateDirect(HANDLES + capacity * Mpi.HANDLE_BYTES);
        larger.order(ByteOrder.nativeOrder());
        long start = Pointer.nativeValue(Native.getDirectBufferPointer(larger));
        if (bytes != null) {
            larger.put(0, bytes, 0, bytes.capacity());
        }
        bytes = larger;
        address = start;
    }

    private long handle(int index) {
        return address + HANDLES + (long) index * Mpi.HANDLE_BYTES;
    }

    /** Adds a request; returns the address for its handle. */
    long add() {
        if (HANDLES + (count + 1) * Mpi.HANDLE_BYTES > bytes.capacity()) {
            reserve(2 * count);
        }
        return handle(count++);
    }

    /** Removes the last request, after a call that did not start it. */
    void revoke() {
        count--;
    }

    /** {@return the number of requests that were added since all had ended} */
    public int count() {
        return count;
    }

    /**
     * Lets MPI make progress; returns whether all transfers have ended. Throws MpiException if one
     * failed; a single one has then ended, and others may go on.
     */
    public boolean test() {
        if (count == 0) {
            return true;
        }
        // MPI_Test is faster than MPI_Testall, and a failed request then has ended.
        boolean single = count == 1;
        int result = single ? testOne(0) : testAll();
        if (single && result != Mpi.SUCCESS) {
            count = 0;
        }
        boolean ended = isSet(single ? "MPI_Test" : "MPI_Testall", result);
        if (ended) {
            count = 0;
        }
        return ended;
    }

    private int testOne(int index) {
        return MpiMessages.MPI_Test(handle(index), address, Mpi.STATUS_IGNORE);
    }

    private int testAll() {
        return MpiMessages.MPI_Testall(count, handle(0), address, Mpi.STATUS_IGNORE);
    }

    /**
     * Lets MPI make progress; returns whether the transfer of an index, in the order of the
     * additions, has ended.
     */
    public boolean test(int index) {
        return isSet("MPI_Test", testOne(index));
    }

    private boolean isSet(String call, int result) {
        Mpi.check(call, result);
        return bytes.getInt(0) != 0;
    }

    /** Asks MPI to cancel what has not ended. {@link #test} tells when all have. */
    public void cancel() {
        for (int i = 0; i < count; i++) {
            if (!test(i)) {
                Mpi.check("MPI_Cancel", Mpi.MPI_Cancel(handle(i)));
            }
        }
    }
}
