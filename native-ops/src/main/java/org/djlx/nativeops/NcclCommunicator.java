/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import com.sun.jna.Memory;
import com.sun.jna.Pointer;
import java.time.Duration;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.locks.LockSupport;

/**
 * One rank of an NCCL communicator.
 *
 * <p>Collectives are enqueued on a stream and return at once; addresses are of the communicator's
 * GPU, counts are in elements. All ranks enqueue the same collectives in the same order. The
 * communicator is created so that no call of NCCL blocks for ever: setting up takes at most the
 * given timeout. A failed call throws {@link NcclException}.
 *
 * <p>Calls on one communicator must not overlap, except {@link #abort}, which any thread may call
 * at any time and which ends what is under way.
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

    private static final int HOST_IMMEDIATE = 1;

    private final CudaDevice device;
    private final Duration timeout;
    private long comm;
    private boolean aborted;

    private NcclCommunicator(CudaDevice device, long comm, Duration timeout) {
        this.device = device;
        this.comm = comm;
        this.timeout = timeout;
    }

    /**
     * Returns what all ranks of a new communicator must be given.
     *
     * @return 128 bytes
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
     * @param timeout how long setting up may take, here and in later calls
     * @return the communicator
     */
    public static NcclCommunicator create(
            CudaDevice device,
            byte[] uniqueId,
            int rank,
            int ranks,
            NcclConfig config,
            Duration timeout) {
        NativeLibrary.NCCL.ensureAvailability();
        Nccl.UniqueId id = new Nccl.UniqueId();
        System.arraycopy(uniqueId, 0, id.internal, 0, Nccl.UNIQUE_ID_BYTES);
        id.write();
        Memory result = new Memory(Long.BYTES);
        Memory struct = config.write();
        result.setLong(0, 0);
        device.makeCurrent();
        int code =
                Nccl.ncclCommInitRankConfig(
                        Pointer.nativeValue(result), ranks, id, rank, Pointer.nativeValue(struct));
        return settled(device, result, code, "ncclCommInitRankConfig", timeout);
    }

    /**
     * Creates a communicator among the ranks of this one that give the same color. All ranks of
     * this one call it.
     *
     * @param color which of the new communicators this rank joins; negative for none
     * @param key orders the ranks of the new communicator; equal keys by their ranks here
     * @param config how it is to work
     * @return the communicator, or null if this rank joins none
     */
    public NcclCommunicator split(int color, int key, NcclConfig config) {
        Memory result = new Memory(Long.BYTES);
        Memory struct = config.write();
        result.setLong(0, 0);
        int code =
                Nccl.ncclCommSplit(
                        open(),
                        color < 0 ? Nccl.NO_COLOR : color,
                        key,
                        Pointer.nativeValue(result),
                        Pointer.nativeValue(struct));
        settle("ncclCommSplit", code);
        if (color < 0) {
            return null;
        }
        return settled(device, result, code, "ncclCommSplit", timeout);
    }

    private static NcclCommunicator settled(
            CudaDevice device, Memory result, int code, String call, Duration timeout) {
        NcclCommunicator communicator = new NcclCommunicator(device, result.getLong(0), timeout);
        try {
            communicator.settle(call, code);
        } catch (NcclException e) {
            communicator.abort();
            throw e;
        }
        return communicator;
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
        int code = Nccl.ncclAllReduce(send, recv, count, code(type), op, open(), stream.handle());
        settle("ncclAllReduce", code);
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
        int code =
                Nccl.ncclReduce(send, recv, count, code(type), op, root, open(), stream.handle());
        settle("ncclReduce", code);
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
        int code = Nccl.ncclBroadcast(send, recv, count, code(type), root, open(), stream.handle());
        settle("ncclBroadcast", code);
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
        int code = Nccl.ncclAllGather(send, recv, count, code(type), open(), stream.handle());
        settle("ncclAllGather", code);
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
        int code =
                Nccl.ncclReduceScatter(send, recv, count, code(type), op, open(), stream.handle());
        settle("ncclReduceScatter", code);
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
        int code = Nccl.ncclSend(send, count, code(type), peer, open(), stream.handle());
        settle("ncclSend", code);
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
        int code = Nccl.ncclRecv(recv, count, code(type), peer, open(), stream.handle());
        settle("ncclRecv", code);
    }

    /**
     * Creates a reduction that multiplies each contribution with a factor and sums.
     *
     * @param factor the factor
     * @param type the element type: float16, float32, float64 or bfloat16
     * @return its number, valid until {@link #destroyOp}
     */
    public int premulSum(double factor, ScalarType type) {
        Memory scalar = new Memory(Double.BYTES);
        switch (type) {
            case FLOAT64 -> scalar.setDouble(0, factor);
            case FLOAT32 -> scalar.setFloat(0, (float) factor);
            case BFLOAT16, FLOAT16 -> scalar.setShort(0, halfBits(factor, type));
            default -> throw new IllegalArgumentException("no factor for " + type);
        }
        Memory result = new Memory(Integer.BYTES);
        int code =
                Nccl.ncclRedOpCreatePreMulSum(
                        Pointer.nativeValue(result),
                        Pointer.nativeValue(scalar),
                        code(type),
                        HOST_IMMEDIATE,
                        open());
        settle("ncclRedOpCreatePreMulSum", code);
        return result.getInt(0);
    }

    private static short halfBits(double factor, ScalarType type) {
        try (NDManager manager = NDManager.newBaseManager(Device.cpu(), "PyTorch");
                NDArray rounded = Torch.cast(manager.create((float) factor), type)) {
            return new Pointer(Torch.dataPointer(rounded)).getShort(0);
        }
    }

    /**
     * Frees a reduction of {@link #premulSum}; what is enqueued with it goes on.
     *
     * @param op its number
     */
    public void destroyOp(int op) {
        settle("ncclRedOpDestroy", Nccl.ncclRedOpDestroy(op, open()));
    }

    /**
     * Runs calls on this communicator as one operation, in which sends and receives can wait for
     * each other in any order.
     *
     * @param calls the calls
     */
    public void group(Runnable calls) {
        device.makeCurrent();
        check(Nccl.ncclGroupStart(), "ncclGroupStart", comm);
        grouping.set(true);
        try {
            calls.run();
        } finally {
            grouping.remove();
            settle("ncclGroupEnd", Nccl.ncclGroupEnd());
        }
    }

    // Within a group nothing is done before its end, so there is nothing to wait for.
    private final ThreadLocal<Boolean> grouping = ThreadLocal.withInitial(() -> false);

    /**
     * Returns what went wrong behind the calls, such as a peer that died.
     *
     * @return the error, or empty
     */
    public Optional<String> asyncError() {
        long handle;
        synchronized (this) {
            handle = comm;
        }
        if (handle == 0) {
            return Optional.empty();
        }
        int state = state(handle);
        return state == Nccl.SUCCESS || state == Nccl.IN_PROGRESS
                ? Optional.empty()
                : Optional.of(describe(state, handle));
    }

    private static int state(long handle) {
        Scratch scratch = Scratch.get();
        int code = Nccl.ncclCommGetAsyncError(handle, scratch.slot(0));
        return code == Nccl.SUCCESS ? scratch.getInt(0) : code;
    }

    /** Ends what is under way on this rank, at once, and frees the communicator. Idempotent. */
    public void abort() {
        long handle;
        synchronized (this) {
            if (comm == 0) {
                return;
            }
            handle = comm;
            comm = 0;
            aborted = true;
        }
        device.makeCurrent();
        Nccl.ncclCommAbort(handle);
    }

    /** Waits for what is enqueued and frees the communicator. Idempotent. */
    @Override
    public void close() {
        long handle;
        synchronized (this) {
            if (comm == 0) {
                return;
            }
            handle = comm;
            comm = 0;
        }
        device.makeCurrent();
        int code = Nccl.ncclCommFinalize(handle);
        long start = System.nanoTime();
        while (code == Nccl.IN_PROGRESS
                || code == Nccl.SUCCESS && state(handle) == Nccl.IN_PROGRESS) {
            if (System.nanoTime() - start > timeout.toNanos()) {
                Nccl.ncclCommAbort(handle);
                return;
            }
            LockSupport.parkNanos(50_000);
            code = state(handle);
        }
        Nccl.ncclCommDestroy(handle);
    }

    private synchronized long open() {
        if (comm == 0) {
            throw new IllegalStateException(
                    "the communicator is " + (aborted ? "aborted" : "closed"));
        }
        device.makeCurrent();
        return comm;
    }

    /** Waits until a call that did not block is done, and checks it. */
    private void settle(String call, int code) {
        int state = code;
        if (state == Nccl.IN_PROGRESS && grouping.get()) {
            return;
        }
        long start = System.nanoTime();
        while (state == Nccl.IN_PROGRESS) {
            long handle;
            synchronized (this) {
                handle = comm;
            }
            if (handle == 0) {
                throw new NcclException(call, "the communicator was aborted");
            }
            state = state(handle);
            if (state == Nccl.IN_PROGRESS) {
                if (System.nanoTime() - start > timeout.toNanos()) {
                    throw new NcclException(call, "not done after " + timeout);
                }
                LockSupport.parkNanos(10_000);
            }
        }
        check(state, call, comm);
    }

    private static void check(int code, String call, long comm) {
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
