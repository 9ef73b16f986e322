// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.mpi;

import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import com.sun.jna.Pointer;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.invoke.MethodHandle;

/**
 * Binds the functions of MPI that move and add messages, through {@code java.lang.foreign}. The
 * class of the same name in {@code src/main/java} is for Java 17 to 21.
 */
final class MpiMessages {

    private static final MethodHandle ISEND = transfer("MPI_Isend");
    private static final MethodHandle IRECV = transfer("MPI_Irecv");
    private static final MethodHandle TEST = handle("MPI_Test", JAVA_LONG, JAVA_LONG, JAVA_LONG);
    private static final MethodHandle TESTALL =
            handle("MPI_Testall", JAVA_INT, JAVA_LONG, JAVA_LONG, JAVA_LONG);
    private static final MethodHandle REDUCE_LOCAL =
            handle("MPI_Reduce_local", JAVA_LONG, JAVA_LONG, JAVA_INT, JAVA_LONG, JAVA_LONG);

    private MpiMessages() {}

    private static MethodHandle transfer(String function) {
        return handle(
                function, JAVA_LONG, JAVA_INT, JAVA_LONG, JAVA_INT, JAVA_INT, JAVA_LONG, JAVA_LONG);
    }

    @SuppressWarnings("restricted") // Libraries are loaded by JNA, which needs the same permission.
    private static MethodHandle handle(String function, MemoryLayout... arguments) {
        long address = Pointer.nativeValue(Mpi.LIBRARY.getFunction(function));
        return Linker.nativeLinker()
                .downcallHandle(
                        MemorySegment.ofAddress(address),
                        FunctionDescriptor.of(JAVA_INT, arguments));
    }

    static int MPI_Isend(
            long address, int count, long type, int destination, int tag, long comm, long request) {
        try {
            return (int) ISEND.invokeExact(address, count, type, destination, tag, comm, request);
        } catch (Throwable e) {
            throw unexpected(e);
        }
    }

    static int MPI_Irecv(
            long address, int count, long type, int source, int tag, long comm, long request) {
        try {
            return (int) IRECV.invokeExact(address, count, type, source, tag, comm, request);
        } catch (Throwable e) {
            throw unexpected(e);
        }
    }

    static int MPI_Test(long request, long flag, long status) {
        try {
            return (int) TEST.invokeExact(request, flag, status);
        } catch (Throwable e) {
            throw unexpected(e);
        }
    }

    static int MPI_Testall(int count, long requests, long flag, long statuses) {
        try {
            return (int) TESTALL.invokeExact(count, requests, flag, statuses);
        } catch (Throwable e) {
            throw unexpected(e);
        }
    }

    static int MPI_Reduce_local(long term, long sum, int count, long type, long op) {
        try {
            return (int) REDUCE_LOCAL.invokeExact(term, sum, count, type, op);
        } catch (Throwable e) {
            throw unexpected(e);
        }
    }

    /** Returns what to throw if a call throws; a C function throws nothing that Java sees. */
    private static RuntimeException unexpected(Throwable e) {
        if (e instanceof Error error) {
            throw error; // For example a StackOverflowError.
        }
        return new IllegalStateException("a native call threw an exception", e);
    }
}
