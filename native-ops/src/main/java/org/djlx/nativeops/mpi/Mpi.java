// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.mpi;

import com.sun.jna.Memory;
import com.sun.jna.Native;
import com.sun.jna.NativeLibrary;
import com.sun.jna.Pointer;
import org.djlx.nativeops.LibraryProbes;
import org.djlx.nativeops.host.Scratch;

/**
 * Binds the constants and the rarely called functions of the MPI that started this process; {@link
 * MpiMessages} binds the others. Handles are addresses in Open MPI and 32-bit integers in MPICH and
 * its relatives (Intel MPI, Cray MPICH, MVAPICH). Here both are longs: Linux passes either in one
 * register or one slot of the stack.
 */
final class Mpi {

    static final int SUCCESS = 0;
    static final int THREAD_MULTIPLE = 3;

    /** What any MPI accepts as a tag, by the standard. */
    static final int MAX_TAG = 32767;

    static final NativeLibrary LIBRARY = LibraryProbes.openMpi();
    private static final boolean OPEN_MPI = isOpenMpi();

    static final long COMM_WORLD = handle("ompi_mpi_comm_world", 0x44000000);
    static final long BYTE = handle("ompi_mpi_byte", 0x4c00010d);
    static final long FLOAT = handle("ompi_mpi_float", 0x4c00040a);
    static final long DOUBLE = handle("ompi_mpi_double", 0x4c00080b);
    static final long SUM = handle("ompi_mpi_op_sum", 0x58000003);
    static final long ERRORS_RETURN = handle("ompi_mpi_errors_return", 0x54000001);
    static final int ANY_SOURCE = OPEN_MPI ? -1 : -2;
    static final long STATUS_IGNORE = OPEN_MPI ? 0 : 1; // and MPI_STATUSES_IGNORE
    static final int HANDLE_BYTES = OPEN_MPI ? Long.BYTES : Integer.BYTES;

    static {
        Native.register(Mpi.class, LIBRARY);
    }

    private Mpi() {}

    private static boolean isOpenMpi() {
        try {
            return LIBRARY.getGlobalVariableAddress("ompi_mpi_comm_world") != null;
        } catch (UnsatisfiedLinkError e) {
            return false;
        }
    }

    private static long handle(String openMpi, int mpich) {
        return OPEN_MPI
                ? Pointer.nativeValue(LIBRARY.getGlobalVariableAddress(openMpi))
                : Integer.toUnsignedLong(mpich);
    }

    /** Returns the handle that a function has written to a zeroed slot of 8 bytes. */
    static long handleAt(long address) {
        Pointer pointer = new Pointer(address);
        return OPEN_MPI ? pointer.getLong(0) : Integer.toUnsignedLong(pointer.getInt(0));
    }

    static void check(String call, int result) {
        if (result != SUCCESS) {
            throw new MpiException(call, errorText(result));
        }
    }

    private static String errorText(int error) {
        Memory text = new Memory(4096); // MPI_MAX_ERROR_STRING is at most 1024.
        long length = Scratch.get().slot(0);
        int result = MPI_Error_string(error, Pointer.nativeValue(text), length);
        return result == SUCCESS ? text.getString(0) : "error " + error;
    }

    static native int MPI_Init_thread(long argc, long argv, int required, long provided);

    static native int MPI_Finalize();

    static native int MPI_Comm_rank(long comm, long rank);

    static native int MPI_Comm_size(long comm, long size);

    static native int MPI_Comm_group(long comm, long group);

    static native int MPI_Group_incl(long group, int count, long ranks, long result);

    static native int MPI_Group_free(long group);

    static native int MPI_Comm_create_group(long comm, long group, int tag, long result);

    static native int MPI_Comm_set_errhandler(long comm, long handler);

    static native int MPI_Comm_free(long comm);

    static native int MPI_Cancel(long request);

    static native int MPI_Error_string(int error, long text, long length);

    static native int MPI_Get_library_version(long text, long length);
}
