// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.nccl;

import com.sun.jna.Memory;
import com.sun.jna.Pointer;
import java.lang.ref.Reference;
import java.util.Optional;
import java.util.Set;
import java.util.function.LongToIntFunction;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.host.NativeCalls;
import org.djlx.nativeops.host.Scratch;
import org.djlx.nativeops.torch.HalfBits;
import org.djlx.nativeops.torch.ScalarType;

/**
 * One rank of an NCCL communicator.
 *
 * <p>Collectives are queued on a stream and return immediately. Addresses are on the communicator's
 * GPU; counts are in elements. Rules:
 *
 * <ul>
 *   <li>All ranks queue the same collectives in the same order; operations on one communicator must
 *       not overlap.
 *   <li>Calls that set something up with other ranks (creation, split, the connections on first
 *       use) block until those ranks call too, or until {@link #abort}.
 *   <li>A thread that makes the calls of several ranks makes them in a {@link NcclGroup}.
 *   <li>{@link #abort} and {@link #asyncError} may be called by any thread at any time.
 *   <li>A failed call throws {@link NcclException}; a call after close or abort throws {@link
 *       IllegalStateException}.
 * </ul>
 */
public final class NcclCommunicator implements AutoCloseable {

    /** The reductions, in the order of NCCL's codes. */
    public enum Op {
        SUM,
        PRODUCT,
        MAX,
        MIN,
        /** The sum divided by the number of ranks. */
        AVG
    }

    public static final int UNIQUE_ID_BYTES = Nccl.UNIQUE_ID_BYTES;

    private static final int HOST_IMMEDIATE = 1;
    // Calls take microseconds. A call that runs longer waits for other ranks, until the abort.
    private static final long ABORT_WAIT_MILLIS = 500;

    private final CudaDevice device;
    // Guarded by this.
    private long comm; // 0 when closed
    private boolean aborted;
    private int users; // calls in progress

    /** Takes ownership of one {@link CudaDevice#retain}. */
    private NcclCommunicator(CudaDevice device, long comm) {
        this.device = device;
        this.comm = comm;
    }

    /**
     * {@return a unique id of {@link #UNIQUE_ID_BYTES} bytes, which all ranks of a new communicator
     * must be given}
     */
    public static byte[] uniqueId() {
        NativeLibrary.NCCL.ensureAvailability();
        Memory id = new Memory(Nccl.UNIQUE_ID_BYTES);
        check(Nccl.ncclGetUniqueId(Pointer.nativeValue(id)), "ncclGetUniqueId", 0);
        return id.getByteArray(0, Nccl.UNIQUE_ID_BYTES);
    }

    private static int version() {
        Memory version = new Memory(Integer.BYTES);
        check(Nccl.ncclGetVersion(Pointer.nativeValue(version)), "ncclGetVersion", 0);
        return version.getInt(0);
    }

    /**
     * Creates this rank of a communicator. Blocks until all ranks call this.
     *
     * @param uniqueId the {@link #uniqueId()} of one of the ranks
     * @throws UnsupportedOperationException if NCCL is too old for the configuration
     * @return the communicator; the caller closes it
     */
    public static NcclCommunicator create(
            CudaDevice device, byte[] uniqueId, int rank, int ranks, NcclConfig config) {
        NativeLibrary.NCCL.ensureAvailability();
        Nccl.UniqueId id = new Nccl.UniqueId();
        System.arraycopy(uniqueId, 0, id.internal, 0, Nccl.UNIQUE_ID_BYTES);
        id.write();
        Memory result = new Memory(Long.BYTES);
        Memory struct = config.write(version());
        result.setLong(0, 0);
        device.retain(); // The caller may close the device while this waits for other ranks.
        try {
            device.makeCurrent();
            int code =
                    Nccl.ncclCommInitRankConfig(
                            Pointer.nativeValue(result),
                            ranks,
                            id,
                            rank,
                            Pointer.nativeValue(struct));
            Reference.reachabilityFence(struct);
            check(code, "ncclCommInitRankConfig", 0);
        } catch (Throwable e) {
            device.release();
            throw e;
        }
        return new NcclCommunicator(device, result.getLong(0));
    }

    /**
     * Creates a new communicator for each color. Blocks until all ranks of this communicator call
     * this.
     *
     * @param color the color: ranks with the same color form a communicator; negative for none
     * @param key the order of the ranks in the new communicator; equal keys are ordered by rank in
     *     this communicator
     * @return the communicator; the caller closes it. Null if the color is negative
     */
    public NcclCommunicator split(int color, int key, NcclConfig config) {
        Memory result = new Memory(Long.BYTES);
        Memory struct = config.write(version());
        result.setLong(0, 0);
        device.retain();
        try {
            call(
                    "ncclCommSplit",
                    handle ->
                            Nccl.ncclCommSplit(
                                    handle,
                                    color < 0 ? Nccl.NO_COLOR : color,
                                    key,
                                    Pointer.nativeValue(result),
                                    Pointer.nativeValue(struct)));
            Reference.reachabilityFence(struct);
        } finally {
            if (result.getLong(0) == 0) {
                device.release();
            }
        }
        long handle = result.getLong(0);
        return handle == 0 ? null : new NcclCommunicator(device, handle);
    }

    /**
     * {@return the element types that NCCL reduces} Other types can be moved as {@link
     * ScalarType#UINT8}.
     */
    public static Set<ScalarType> reducibleTypes() {
        return Nccl.TYPES.keySet();
    }

    /**
     * All-reduce.
     *
     * @param recv the address of the output; may be {@code send}
     * @param op the code of the reduction: {@link Op#ordinal()} or from {@link #premulSum}
     */
    public void allReduce(
            long send, long recv, long count, ScalarType type, int op, CudaStream stream) {
        call(
                "ncclAllReduce",
                handle ->
                        Nccl.ncclAllReduce(
                                send, recv, count, code(type), op, handle, stream.handle()));
    }

    /** Reduces to one rank, which alone uses {@code recv}. */
    public void reduce(
            long send,
            long recv,
            long count,
            ScalarType type,
            int op,
            int root,
            CudaStream stream) {
        call(
                "ncclReduce",
                handle ->
                        Nccl.ncclReduce(
                                send, recv, count, code(type), op, root, handle, stream.handle()));
    }

    /** Broadcasts from one rank, which alone uses {@code send}, to all. */
    public void broadcast(
            long send, long recv, long count, ScalarType type, int root, CudaStream stream) {
        call(
                "ncclBroadcast",
                handle ->
                        Nccl.ncclBroadcast(
                                send, recv, count, code(type), root, handle, stream.handle()));
    }

    /**
     * All-gather of {@code count} elements of each rank: the output has the inputs of all ranks, in
     * rank order.
     */
    public void allGather(long send, long recv, long count, ScalarType type, CudaStream stream) {
        call(
                "ncclAllGather",
                handle ->
                        Nccl.ncclAllGather(send, recv, count, code(type), handle, stream.handle()));
    }

    /** Reduce-scatter: the input has {@code count} elements for each rank, in rank order. */
    public void reduceScatter(
            long send, long recv, long count, ScalarType type, int op, CudaStream stream) {
        call(
                "ncclReduceScatter",
                handle ->
                        Nccl.ncclReduceScatter(
                                send, recv, count, code(type), op, handle, stream.handle()));
    }

    /** Sends to one rank, which must call {@link #recv}. */
    public void send(long send, long count, ScalarType type, int peer, CudaStream stream) {
        call(
                "ncclSend",
                handle -> Nccl.ncclSend(send, count, code(type), peer, handle, stream.handle()));
    }

    /** Receives from one rank, which must call {@link #send}. */
    public void recv(long recv, long count, ScalarType type, int peer, CudaStream stream) {
        call(
                "ncclRecv",
                handle -> Nccl.ncclRecv(recv, count, code(type), peer, handle, stream.handle()));
    }

    /**
     * Creates a reduction that multiplies each input, of float16, float32, float64 or bfloat16, by
     * a factor and sums the products. Returns its code, valid until {@link #destroyOp}.
     */
    public int premulSum(double factor, ScalarType type) {
        Scratch scratch = Scratch.get();
        scratch.putLong(0, factorBits(factor, type));
        call(
                "ncclRedOpCreatePreMulSum",
                handle ->
                        Nccl.ncclRedOpCreatePreMulSum(
                                scratch.slot(1),
                                scratch.slot(0),
                                code(type),
                                HOST_IMMEDIATE,
                                handle));
        return scratch.getInt(1);
    }

    /** Returns the bits of an element in a little-endian long. */
    private static long factorBits(double factor, ScalarType type) {
        return switch (type) {
            case FLOAT64 -> Double.doubleToRawLongBits(factor);
            case FLOAT32 -> Float.floatToRawIntBits((float) factor);
            case BFLOAT16 -> HalfBits.bfloat16((float) factor);
            case FLOAT16 -> HalfBits.float16((float) factor);
            default ->
                    throw new IllegalArgumentException(
                            "premulSum does not support the element type " + type);
        };
    }

    /**
     * Frees a reduction of {@link #premulSum}. Operations called with it before are not affected.
     */
    public void destroyOp(int op) {
        call("ncclRedOpDestroy", handle -> Nccl.ncclRedOpDestroy(op, handle));
    }

    /** {@return an asynchronous error, for example a dead peer; empty if there is none} */
    public Optional<String> asyncError() {
        long handle;
        synchronized (this) {
            if (comm == 0) {
                return Optional.empty();
            }
            handle = enter();
        }
        try {
            Scratch scratch = Scratch.get();
            int code = Nccl.ncclCommGetAsyncError(handle, scratch.slot(0));
            int state = code == Nccl.SUCCESS ? scratch.getInt(0) : code;
            return state == Nccl.SUCCESS || state == Nccl.IN_PROGRESS
                    ? Optional.empty()
                    : Optional.of(describe(state, handle));
        } finally {
            exit();
        }
    }

    /**
     * Aborts the operations of this rank and frees the communicator. A call that waits for other
     * ranks fails. With ranks in one process, NCCL frees memory only when the last rank aborts or
     * closes. The GPU may finish later: see {@link CudaStream#query()}. Idempotent.
     */
    public void abort() {
        free(take(true), Nccl::ncclCommAbort);
    }

    /**
     * Frees the communicator. No operation may be running. With ranks in one process, the last rank
     * to call frees all communicators, and the other calls return immediately. Ranks in several
     * processes of a host wait for each other. Idempotent.
     */
    @Override
    public void close() {
        free(take(false), Nccl::ncclCommDestroy);
    }

    private void free(long handle, LongToIntFunction call) {
        if (handle != 0) {
            try {
                device.in(() -> call.applyAsInt(handle));
            } finally {
                device.release();
            }
        }
    }

    /** Takes the handle, after waiting for calls in progress; 0 if it was taken before. */
    private synchronized long take(boolean abort) {
        long handle = comm;
        if (handle == 0) {
            return 0;
        }
        comm = 0;
        aborted = abort;
        long end = System.nanoTime() + ABORT_WAIT_MILLIS * 1_000_000;
        boolean interrupted = false;
        while (users > 0 && System.nanoTime() < end) {
            try {
                wait(Math.max(1, (end - System.nanoTime()) / 1_000_000));
            } catch (InterruptedException e) {
                interrupted = true;
            }
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
        return handle;
    }

    CudaDevice device() {
        return device;
    }

    void call(String name, LongToIntFunction function) {
        NcclGroup group = NcclGroup.current();
        long handle = enter();
        boolean stays = false;
        try {
            device.makeCurrent();
            stays = group != null && group.add(this); // The use lasts until the group's end.
            check(function.applyAsInt(handle), name, handle);
        } finally {
            if (!stays) {
                exit();
            }
        }
    }

    private synchronized long enter() {
        if (comm == 0) {
            throw new IllegalStateException(
                    "the communicator is " + (aborted ? "aborted" : "closed"));
        }
        users++;
        return comm;
    }

    /** Ends a use, by a call or by a group. */
    synchronized void exit() {
        users--;
        notifyAll();
    }

    static void check(int code, String call, long comm) {
        NativeCalls.countOther();
        if (code != Nccl.SUCCESS) {
            throw new NcclException(call, describe(code, comm));
        }
    }

    private static String describe(int code, long comm) {
        String detail = comm == 0 ? null : Nccl.ncclGetLastError(comm);
        String name = Nccl.ncclGetErrorString(code);
        return detail == null || detail.isBlank() ? name : name + ": " + detail.strip();
    }

    private static int code(ScalarType type) {
        Integer code = Nccl.TYPES.get(type);
        if (code == null) {
            throw new IllegalArgumentException(
                    "NCCL does not support the element type " + type + "; move it as UINT8");
        }
        return code;
    }
}
