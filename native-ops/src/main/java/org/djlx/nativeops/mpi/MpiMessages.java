// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.mpi;

import com.sun.jna.Native;

/**
 * Binds the functions of MPI that move and add messages. The class of the same name in {@code
 * src/main/java22} is for Java 22 and newer, where a call takes a tenth of the time.
 */
final class MpiMessages {

    static {
        Native.register(MpiMessages.class, Mpi.LIBRARY);
    }

    private MpiMessages() {}

    static native int MPI_Isend(
            long address, int count, long type, int destination, int tag, long comm, long request);

    static native int MPI_Irecv(
            long address, int count, long type, int source, int tag, long comm, long request);

    static native int MPI_Test(long request, long flag, long status);

    static native int MPI_Testall(int count, long requests, long flag, long statuses);

    static native int MPI_Reduce_local(long term, long sum, int count, long type, long op);
}
