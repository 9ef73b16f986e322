/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops.nccl;

import com.sun.jna.Memory;
import com.sun.jna.Pointer;
import java.lang.ref.Reference;
import java.util.Optional;
import java.util.Set;
import java.util.function.LongToIntFunction;
import org.djlx.nativeops.NativeCalls;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.host.Scratch;
import org.djlx.nativeops.torch.HalfBits;
import org.djlx.nativeops.torch.ScalarType;

/**
 * One rank of an NCCL communicator.
 *
 * <p>Collectives are enqueued on a stream and return at once; addresses are of the communicator's
 * GPU, counts are in elements. All ranks enqueue the same collectives in the same order. Where
 * something must first be set up with other ranks (the communicator, a split, the connections at
 * their first use), a call waits for them; {@link #abort} ends that. A thread that makes the calls
 * of several ranks makes them in a {@link NcclGroup}. A failed call throws {@link NcclException},
 * one on a communicator that was closed or aborted {@link IllegalStateException}.
 *
 * <p>Operations on one communicator must not overlap. {@link #abort} may be called by any thread at
 * any time, and so may {@link #asyncError}.
 */
public final class NcclCommunicator implements AutoCloseable {

    /** How a reduction combines elements, by NCCL's numbers. */
    public enum Op {
        /** The sum. */
        SUM,
        /** The product. */
        PRODUCT,
        /** The largest. */
        MAX,
        /** The smallest. */
        MIN,
        /** The sum divided by the number of ranks. */
        AVG
    }

    /** The size of what {@link #uniqueId} returns. */
    public static final int UNIQUE_ID_BYTES = Nccl.UNIQUE_ID_BYTES;

    private static final int HOST_IMMEDIATE = 1;
    // Calls take microseconds; one that has not returned by then waits for other ranks, and returns
    // only by the abort.
    private static final long ABORT_PATIENCE_MILLIS = 500;

    private final CudaDevice device;
    private long comm; // 0 when closed; guarded by this, like those below
    private boolean aborted;
    private int users;

    /** Takes over a use of the device. */
    private NcclCommunicator(CudaDevice device, long comm) {
        this.device = device;
        this.comm = comm;
    }

    /**
     * Returns what all ranks of a new communicator must be given.
     *
     * @return {@link #UNIQUE_ID_BYTES} bytes
     */
    public static byte[] uniqueId() {
        NativeLibrary.NCCL.ensureAvailability();
        Memory id = new Memory(Nccl.UNIQUE_ID_BYTES);
        check(Nccl.ncclGetUniqueId(Pointer.nativeValue(id)), "ncclGetUniqueId", 0);
        return id.getByteArray(0, Nccl.UNIQUE_ID_BYTES);
    }

    /**
     * Creates this rank of a communicator; returns when all ranks have.
     *
     * @param device the rank's GPU
     * @param uniqueId from {@link #uniqueId()} of one of the ranks
     * @param rank the rank
     * @param ranks the number of ranks
     * @param config how it is to work
     * @return the communicator
     */
    public static NcclCommunicator create(
            CudaDevice device, byte[] uniqueId, int rank, int ranks, NcclConfig config) {
        NativeLibrary.NCCL.ensureAvailability();
        Nccl.UniqueId id = new Nccl.UniqueId();
        System.arraycopy(uniqueId, 0, id.internal, 0, Nccl.UNIQUE_ID_BYTES);
        id.write();
        Memory result = new Memory(Long.BYTES);
        Memory struct = config.write();
        result.setLong(0, 0);
        device.retain(); // It may be closed by the time that the other ranks have come.
        boolean done = false;
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
            done = true;
        } finally {
            if (!done) {
                device.release();
            }
        }
        return new NcclCommunicator(device, result.getLong(0));
    }

    /**
     * Creates a communicator among the ranks of this one that give the same color. All ranks of
     * this one call it, and wait for each other.
     *
     * @param color which of the new communicators this rank joins; negative for none
     * @param key orders the ranks of the new communicator; equal keys by their ranks here
     * @param config how it is to work
     * @return the communicator; null if this rank joins none
     */
    public NcclCommunicator split(int color, int key, NcclConfig config) {
        Memory result = new Memory(Long.BYTES);
        Memory struct = config.write();
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
     * Tells which element types NCCL reduces. Others can be moved, as {@link ScalarType#UINT8}.
     *
     * @return the types
     */
    public static Set<ScalarType> reducibleTypes() {
        return Nccl.TYPES.keySet();
    }

    /**
     * Reduces; every rank gets the result.
     *
     * @param send this rank's contribution
     * @param recv where the result goes; may be the same
     * @param count the number of elements
     * @param type their type
     * @param op a number from {@link Op#ordinal()} or {@link #premulSum}
     * @param stream where it is enqueued
     */
    public void allReduce(
            long send, long recv, long count, ScalarType type, int op, CudaStream stream) {
        call(
                "ncclAllReduce",
                handle ->
                        Nccl.ncclAllReduce(
                                send, recv, count, code(type), op, handle, stream.handle()));
    }

    /**
     * Reduces; one rank gets the result.
     *
     * @param send this rank's contribution
     * @param recv where the result goes on the root
     * @param count the number of elements
     * @param type their type
     * @param op a number from {@link Op#ordinal()} or {@link #premulSum}
     * @param root the rank that gets it
     * @param stream where it is enqueued
     */
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

    /**
     * Sends from one rank to all others.
     *
     * @param send what is sent, on the root
     * @param recv where it goes
     * @param count the number of elements
     * @param type their type
     * @param root the rank that sends
     * @param stream where it is enqueued
     */
    public void broadcast(
            long send, long recv, long count, ScalarType type, int root, CudaStream stream) {
        call(
                "ncclBroadcast",
                handle ->
                        Nccl.ncclBroadcast(
                                send, recv, count, code(type), root, handle, stream.handle()));
    }

    /**
     * Gathers on every rank.
     *
     * @param send this rank's contribution
     * @param recv where those of all ranks go, in rank order
     * @param count the number of elements of one contribution
     * @param type their type
     * @param stream where it is enqueued
     */
    public void allGather(long send, long recv, long count, ScalarType type, CudaStream stream) {
        call(
                "ncclAllGather",
                handle ->
                        Nccl.ncclAllGather(send, recv, count, code(type), handle, stream.handle()));
    }

    /**
     * Reduces and scatters the result.
     *
     * @param send this rank's contribution, of all ranks' parts in rank order
     * @param recv where this rank's part of the result goes
     * @param count the number of elements of one part
     * @param type their type
     * @param op a number from {@link Op#ordinal()} or {@link #premulSum}
     * @param stream where it is enqueued
     */
    public void reduceScatter(
            long send, long recv, long count, ScalarType type, int op, CudaStream stream) {
        call(
                "ncclReduceScatter",
                handle ->
                        Nccl.ncclReduceScatter(
                                send, recv, count, code(type), op, handle, stream.handle()));
    }

    /**
     * Sends to one rank, which must receive.
     *
     * @param send what is sent
     * @param count the number of elements
     * @param type their type
     * @param peer the rank that receives
     * @param stream where it is enqueued
     */
    public void send(long send, long count, ScalarType type, int peer, CudaStream stream) {
        call(
                "ncclSend",
                handle -> Nccl.ncclSend(send, count, code(type), peer, handle, stream.handle()));
    }

    /**
     * Receives from one rank, which must send.
     *
     * @param recv where it goes
     * @param count the number of elements
     * @param type their type
     * @param peer the rank that sends
     * @param stream where it is enqueued
     */
    public void recv(long recv, long count, ScalarType type, int peer, CudaStream stream) {
        call(
                "ncclRecv",
                handle -> Nccl.ncclRecv(recv, count, code(type), peer, handle, stream.handle()));
    }

    /**
     * Creates a reduction that multiplies each contribution with a factor and sums.
     *
     * @param factor the factor
     * @param type the element type: float16, float32, float64 or bfloat16
     * @return its number, valid until {@link #destroyOp}
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

    /** The bits of an element, the lowest of a long: they come first, on all CPUs that CUDA has. */
    private static long factorBits(double factor, ScalarType type) {
        return switch (type) {
            case FLOAT64 -> Double.doubleToRawLongBits(factor);
            case FLOAT32 -> Float.floatToRawIntBits((float) factor);
            case BFLOAT16 -> HalfBits.bfloat16((float) factor);
            case FLOAT16 -> HalfBits.float16((float) factor);
            default -> throw new IllegalArgumentException("no factor for " + type);
        };
    }

    /**
     * Frees a reduction of {@link #premulSum}; what was called with it before goes on.
     *
     * @param op its number
     */
    public void destroyOp(int op) {
        call("ncclRedOpDestroy", handle -> Nccl.ncclRedOpDestroy(op, handle));
    }

    /**
     * Returns what went wrong behind the calls, such as a peer that died.
     *
     * @return the error, or empty
     */
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
     * Ends what is under way on this rank and frees the communicator. A call that waits for other
     * ranks fails. With ranks in one process, NCCL frees when the last of them aborts or closes,
     * and the GPU may need some time to come to the end: see {@link CudaStream#query()}.
     * Idempotent.
     */
    public void abort() {
        free(take(true), Nccl::ncclCommAbort);
    }

    /**
     * Frees the communicator, of which nothing must be under way any more. With ranks in one
     * process, the last of them frees all, and the others return at once; ranks in several
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

    /** Takes the native communicator away, when no call uses it any more. */
    private synchronized long take(boolean abort) {
        long handle = comm;
        if (handle == 0) {
            return 0;
        }
        comm = 0;
        aborted = abort;
        long end = System.nanoTime() + ABORT_PATIENCE_MILLIS * 1_000_000;
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

    /** The GPU. */
    CudaDevice device() {
        return device;
    }

    /** Makes a call. */
    void call(String name, LongToIntFunction function) {
        NcclGroup group = NcclGroup.current();
        long handle = enter();
        boolean stays = false;
        try {
            device.makeCurrent();
            stays = group != null && group.add(this); // Until the group's end.
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

    /** Ends a use; also that by a group. */
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
            throw new IllegalArgumentException("NCCL does not know " + type);
        }
        return code;
    }
}
