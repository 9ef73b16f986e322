// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.mpi;

import com.sun.jna.Memory;
import com.sun.jna.Pointer;
import org.djlx.nativeops.host.Scratch;

/**
 * A communicator of MPI: ranks that exchange messages of bytes. Any thread may call it; one at a
 * time uses a {@link MpiRequests}. Load only if {@link org.djlx.nativeops.NativeLibrary#MPI} is
 * available.
 */
public final class MpiCommunicator implements AutoCloseable {

    public static final int MAX_TAG = Mpi.MAX_TAG;

    /** The source of a message from any rank. */
    public static final int ANY_SOURCE = Mpi.ANY_SOURCE;

    /** The most bytes of one message. */
    public static final int MAX_BYTES = 1 << 30;

    // Guarded by the class.
    private static MpiCommunicator world;
    private static int threadLevel = -1; // that MPI provides; -1 before it is initialised

    private final long comm;
    private final int rank;
    private final int size;

    private MpiCommunicator(long comm) {
        this.comm = comm;
        Mpi.check("MPI_Comm_set_errhandler", Mpi.MPI_Comm_set_errhandler(comm, Mpi.ERRORS_RETURN));
        Scratch scratch = Scratch.get();
        Mpi.check("MPI_Comm_rank", Mpi.MPI_Comm_rank(comm, scratch.slot(0)));
        rank = scratch.getInt(0);
        Mpi.check("MPI_Comm_size", Mpi.MPI_Comm_size(comm, scratch.slot(0)));
        size = scratch.getInt(0);
    }

    /**
     * Returns the communicator of all processes that mpirun has started. The first call initialises
     * MPI; no other code of the process may do so.
     *
     * @throws MpiException if MPI cannot be initialised, or does not support calls of several
     *     threads
     */
    public static synchronized MpiCommunicator world() {
        if (world == null) {
            if (threadLevel < 0) { // MPI ends a process that initialises it twice.
                Scratch scratch = Scratch.get();
                int result = Mpi.MPI_Init_thread(0, 0, Mpi.THREAD_MULTIPLE, scratch.slot(0));
                Mpi.check("MPI_Init_thread", result);
                threadLevel = scratch.getInt(0);
            }
            if (threadLevel < Mpi.THREAD_MULTIPLE) {
                throw new MpiException(
                        "MPI_Init_thread",
                        "it provides thread level "
                                + threadLevel
                                + ", and MPI_THREAD_MULTIPLE (3) is needed; use an MPI that is"
                                + " built with it");
            }
            world = new MpiCommunicator(Mpi.COMM_WORLD);
        }
        return world;
    }

    /** Finalizes MPI. All processes must call it; it may wait for them. */
    public static void finish() {
        Mpi.check("MPI_Finalize", Mpi.MPI_Finalize());
    }

    public static String version() {
        Memory text = new Memory(16 << 10); // MPI_MAX_LIBRARY_VERSION_STRING is at most 8192.
        long length = Scratch.get().slot(0);
        Mpi.check(
                "MPI_Get_library_version",
                Mpi.MPI_Get_library_version(Pointer.nativeValue(text), length));
        return text.getString(0).split("[,\\n]")[0].strip();
    }

    public int rank() {
        return rank;
    }

    public int size() {
        return size;
    }

    /**
     * Creates the communicator of some of the ranks, in the order of their new ranks. Each of them
     * calls it, and blocks until all have. The tag is the same on all members, and distinguishes
     * calls at the same time.
     */
    public MpiCommunicator create(int[] members, int tag) {
        Memory ranks = new Memory((long) members.length * Integer.BYTES);
        ranks.write(0, members, 0, members.length);
        Scratch scratch = Scratch.get();
        Mpi.check("MPI_Comm_group", Mpi.MPI_Comm_group(comm, scratch.slot(0)));
        long all = Mpi.handleAt(scratch.slot(0));
        scratch.putLong(1, 0);
        Mpi.check(
                "MPI_Group_incl",
                Mpi.MPI_Group_incl(
                        all, members.length, Pointer.nativeValue(ranks), scratch.slot(1)));
        scratch.putLong(2, 0);
        long group = Mpi.handleAt(scratch.slot(1));
        Mpi.check(
                "MPI_Comm_create_group",
                Mpi.MPI_Comm_create_group(comm, group, tag, scratch.slot(2)));
        long created = Mpi.handleAt(scratch.slot(2));
        Mpi.check("MPI_Group_free", Mpi.MPI_Group_free(scratch.slot(0)));
        Mpi.check("MPI_Group_free", Mpi.MPI_Group_free(scratch.slot(1)));
        return new MpiCommunicator(created);
    }

    /**
     * Starts to send at most {@link #MAX_BYTES} bytes. The memory must not change until the request
     * is done.
     */
    public void send(MpiRequests requests, long address, int bytes, int destination, int tag) {
        started(
                requests,
                "MPI_Isend",
                MpiMessages.MPI_Isend(
                        address, bytes, Mpi.BYTE, destination, tag, comm, requests.add()));
    }

    /**
     * Starts to receive a message of at most so many bytes, up to {@link #MAX_BYTES}, from a rank
     * or {@link #ANY_SOURCE}.
     */
    public void receive(MpiRequests requests, long address, int bytes, int source, int tag) {
        started(
                requests,
                "MPI_Irecv",
                MpiMessages.MPI_Irecv(address, bytes, Mpi.BYTE, source, tag, comm, requests.add()));
    }

    private static void started(MpiRequests requests, String call, int result) {
        if (result != Mpi.SUCCESS) {
            requests.revoke();
            Mpi.check(call, result);
        }
    }

    /**
     * Adds the doubles or floats at an address to those of a sum, element by element, on this rank.
     */
    public static void add(long sum, long term, int count, boolean isDouble) {
        long type = isDouble ? Mpi.DOUBLE : Mpi.FLOAT;
        Mpi.check(
                "MPI_Reduce_local", MpiMessages.MPI_Reduce_local(term, sum, count, type, Mpi.SUM));
    }

    /** Frees the communicator. No request may be in use, and no rank may send any more. */
    @Override
    public void close() {
        Scratch scratch = Scratch.get();
        scratch.putLong(0, comm);
        Mpi.check("MPI_Comm_free", Mpi.MPI_Comm_free(scratch.slot(0)));
    }
}
