/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops.cuda;

import ai.djl.ndarray.NDArray;
import org.bytedeco.cuda.cudart.CUevent_st;
import org.bytedeco.cuda.cudart.CUstream_st;
import org.bytedeco.cuda.global.cudart;
import org.djlx.nativeops.host.CallingThread;
import org.djlx.nativeops.host.NativeMemory;
import org.djlx.nativeops.torch.Torch;

/**
 * A queue of work for a GPU, which does it in order. Methods queue work and return, {@link
 * #synchronize()} excepted. They may be called by any thread; what several threads queue at once is
 * in some order.
 *
 * <p><b>Waiting for flags.</b> While a stream waits in {@link #waitValue32}, nothing may make the
 * host wait for the whole GPU before the flag is raised: not the first launch of a kernel whose
 * module loads lazily, nor allocating or freeing GPU memory, nor the default stream. Load and
 * allocate first. The wait has no deadline and holds up its hardware queue, which other streams may
 * share, so that the host may have no way to end it: where the flag may never be raised, wait in a
 * kernel.
 */
public final class CudaStream extends CudaResource {

    private final CUstream_st stream;
    private final boolean owned;
    private final StreamOrderedRelease kept;

    /** Creates a stream. */
    private CudaStream(CudaDevice device, int priority) {
        super(device);
        stream = new CUstream_st();
        owned = true;
        kept = new StreamOrderedRelease(this);
        create(
                "cuStreamCreateWithPriority",
                () ->
                        cudart.cuStreamCreateWithPriority(
                                stream, cudart.CU_STREAM_NON_BLOCKING, priority));
    }

    /** Wraps a stream. */
    private CudaStream(CudaDevice device, CUstream_st stream) {
        super(device);
        this.stream = stream;
        owned = false;
        kept = new StreamOrderedRelease(this);
    }

    /**
     * Creates a stream that is independent of the default stream.
     *
     * @param device the GPU
     * @return the stream, to be closed by the caller
     */
    public static CudaStream create(CudaDevice device) {
        return create(device, 0);
    }

    /**
     * Creates a stream that is independent of the default stream.
     *
     * @param device the GPU
     * @param priority the lower the number, the sooner its kernels start; CUDA clamps it to the
     *     range from {@link CudaDevice#highestStreamPriority()} to 0
     * @return the stream, to be closed by the caller
     */
    public static CudaStream create(CudaDevice device, int priority) {
        return new CudaStream(device, priority);
    }

    /**
     * Returns a stream that another library owns, such as libtorch's current one.
     *
     * @param device the GPU that the stream is of
     * @param handle the {@code cudaStream_t}, as {@link Torch#currentCudaStream} returns it; 0 is
     *     the default stream. It must outlive the result
     * @return the stream; closing it leaves the other library's stream alone
     */
    public static CudaStream wrap(CudaDevice device, long handle) {
        return new CudaStream(device, new CUstream_st(CudaDriver.pointer(handle)));
    }

    /**
     * Returns the stream as other libraries take it.
     *
     * @return the {@code cudaStream_t}; 0 is the default stream
     */
    public long handle() {
        return stream().address();
    }

    /**
     * Lets work queued from now on wait until the event, as last recorded, has passed.
     *
     * @param event an event, of this or another GPU
     */
    public void waitEvent(CudaEvent event) {
        CUevent_st handle = event.event();
        requireOpen();
        CallingThread thread = CallingThread.get();
        boolean pushed = device().enter(thread);
        try {
            CudaDriver.check(cudart.cuStreamWaitEvent(stream, handle, 0), "cuStreamWaitEvent");
        } finally {
            CudaDriver.leave(thread, pushed);
        }
    }

    /**
     * Writes a 32-bit value once all work before is done. What that work wrote is visible to
     * whoever sees the value.
     *
     * @param address where to, a multiple of 4: memory of this GPU, of a peer to which access is
     *     enabled, or pinned host memory
     * @param value the value
     */
    public void writeValue32(long address, int value) {
        requireAligned(address);
        requireOpen();
        CallingThread thread = CallingThread.get();
        boolean pushed = device().enter(thread);
        try {
            CudaDriver.check(
                    cudart.cuStreamWriteValue32(
                            stream, address, value, cudart.CU_STREAM_WRITE_VALUE_DEFAULT),
                    "cuStreamWriteValue32");
        } finally {
            CudaDriver.leave(thread, pushed);
        }
    }

    /**
     * Lets work queued from now on wait until a 32-bit word has reached a value, counting on past
     * the largest: until {@code word - value >= 0} as a signed difference. See the class's note on
     * waiting for flags.
     *
     * @param address where the word is, a multiple of 4: memory of this GPU or pinned host memory
     * @param value the value to wait for
     */
    public void waitValue32(long address, int value) {
        requireAligned(address);
        call(
                "cuStreamWaitValue32",
                () ->
                        cudart.cuStreamWaitValue32(
                                stream, address, value, cudart.CU_STREAM_WAIT_VALUE_GEQ));
    }

    private static void requireAligned(long address) {
        if (address == 0 || address % Integer.BYTES != 0) {
            throw new IllegalArgumentException(
                    String.format("0x%x is not the address of a 32-bit word", address));
        }
    }

    /**
     * Copies bytes; between GPUs by a copy engine, over NVLink where there is one.
     *
     * @param destination where to: an address on this GPU, on a peer to which access is enabled, or
     *     in pinned host memory
     * @param source where from, likewise
     * @param byteSize how many bytes; 0 does nothing
     */
    public void copyAsync(long destination, long source, long byteSize) {
        requireSize(byteSize);
        if (byteSize > 0) {
            // Not cuMemcpyAsync, which takes an unknown address for one of the host and uses it.
            requireOpen();
            CallingThread thread = CallingThread.get();
            boolean pushed = device().enter(thread);
            try {
                CudaDriver.check(
                        cudart.cuMemcpyDtoDAsync(destination, source, byteSize, stream),
                        "cuMemcpyDtoDAsync");
            } finally {
                CudaDriver.leave(thread, pushed);
            }
        }
    }

    /**
     * Sets bytes.
     *
     * @param address the address of the first
     * @param value the value of each
     * @param byteSize how many bytes; 0 does nothing
     */
    public void memsetAsync(long address, byte value, long byteSize) {
        requireSize(byteSize);
        if (byteSize > 0) {
            call("cuMemsetD8Async", () -> cudart.cuMemsetD8Async(address, value, byteSize, stream));
        }
    }

    private static void requireSize(long byteSize) {
        if (byteSize < 0) {
            throw new IllegalArgumentException("the size is negative: " + byteSize + " bytes");
        }
    }

    /**
     * Keeps arrays' storage from being reused until this stream has done all work that it has been
     * given so far, even if the arrays are closed at once. The host does not wait.
     *
     * <p>Why this is needed: libtorch keeps the memory of a freed tensor and gives it to the next
     * tensor that fits. It takes care that the stream on which the tensor was <em>allocated</em> is
     * done with it by doing the work of both in that stream's order; of other streams it knows
     * nothing. An array that a side stream still reads or writes when its last owner closes it
     * would be overwritten meanwhile. {@code Tensor.record_stream}, which tells libtorch of a side
     * stream, is not in its stable C interface. So this method holds one more reference to each
     * tensor (and to the {@link NativeMemory} behind a view) and records an event on this stream.
     * Later calls of this method, on any stream, let go of what their GPU has passed; {@link
     * #releasePassed()} does so without keeping more.
     *
     * <p>While {@link CudaGraph#capture} runs on this thread, the arrays belong to the graph and
     * are held until it is closed, for every replay uses them.
     *
     * @param arrays the arrays that work queued on this stream reads or writes; on any device
     * @throws IllegalStateException if the stream is being captured by something else than {@link
     *     CudaGraph#capture} on this thread, as nobody would know when to let go
     */
    public void keepAlive(NDArray... arrays) {
        requireOpen();
        kept.hold(arrays);
    }

    /** Lets go of arrays in {@link #keepAlive} whose work is done. Never waits. */
    public void releasePassed() {
        kept.releasePassed();
    }

    /**
     * Tells whether work queued now goes into a graph instead of being done.
     *
     * @return whether the stream is being captured
     */
    public boolean isCapturing() {
        requireOpen();
        int[] status = new int[1];
        CallingThread thread = CallingThread.get();
        boolean pushed = device().enter(thread);
        try {
            CudaDriver.check(cudart.cuStreamIsCapturing(stream, status), "cuStreamIsCapturing");
        } finally {
            CudaDriver.leave(thread, pushed);
        }
        return status[0] != cudart.CU_STREAM_CAPTURE_STATUS_NONE;
    }

    /**
     * Tells whether all work is done. Never waits.
     *
     * @return whether it is
     */
    public boolean query() {
        requireOpen();
        int result = device().in(() -> cudart.cuStreamQuery(stream));
        if (result == cudart.CUDA_ERROR_NOT_READY) {
            return false;
        }
        CudaDriver.check(result, "cuStreamQuery");
        return true;
    }

    /**
     * Waits until all work is done. The thread may spin; {@link CudaEvent#synchronize()} of an
     * event for timing sleeps.
     *
     * @throws CudaException also with the error of work done before, such as {@code
     *     CUDA_ERROR_ILLEGAL_ADDRESS}, after which the context is of no more use
     */
    public void synchronize() {
        call("cuStreamSynchronize", () -> cudart.cuStreamSynchronize(stream));
    }

    void record(CUevent_st event) {
        requireOpen();
        CallingThread thread = CallingThread.get();
        boolean pushed = device().enter(thread);
        try {
            CudaDriver.check(cudart.cuEventRecord(event, stream), "cuEventRecord");
        } finally {
            CudaDriver.leave(thread, pushed);
        }
    }

    CUstream_st stream() {
        requireOpen();
        return stream;
    }

    @Override
    void destroy() {
        kept.close();
        if (owned) {
            // Returns at once: the stream goes when its work is done.
            device().call("cuStreamDestroy", () -> cudart.cuStreamDestroy(stream));
        }
    }
}
