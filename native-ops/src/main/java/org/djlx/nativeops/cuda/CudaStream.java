// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import java.util.Deque;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedDeque;
import org.bytedeco.cuda.cudart.CUevent_st;
import org.bytedeco.cuda.cudart.CUstream_st;
import org.bytedeco.cuda.global.cudart;
import org.bytedeco.javacpp.IntPointer;
import org.djlx.nativeops.host.CallingThread;
import org.djlx.nativeops.host.CopyQueue;
import org.djlx.nativeops.host.NativeMemory;
import org.djlx.nativeops.torch.Torch;

/**
 * A CUDA stream: a queue of work that a GPU executes in order. Methods queue work and return,
 * except {@link #synchronize()}. Thread-safe; work that several threads queue at the same time has
 * no defined order.
 */
public final class CudaStream extends CudaResource implements CopyQueue {

    /**
     * Closed streams without work, for later ones. Streams are reused because after many were
     * destroyed, the driver (580 on an H100) gave two later streams one hardware queue, and a
     * kernel that waits for a peer then held up its peer on the same GPU. libtorch keeps its
     * streams, too.
     */
    private static final Map<Kind, Deque<CUstream_st>> IDLE = new ConcurrentHashMap<>();

    private final CUstream_st stream;
    private final Deque<CUstream_st> idle; // takes the stream when it is closed; null if not owned
    private final StreamOrderedRelease kept;

    private record Kind(Device device, int priority) {}

    private CudaStream(CudaDevice device, int priority) {
        super(device);
        idle = IDLE.computeIfAbsent(new Kind(device.device(), priority), kind -> idle(device));
        CUstream_st unused = idle.poll();
        stream = unused == null ? new CUstream_st() : unused;
        kept = new StreamOrderedRelease(this);
        if (unused == null) {
            create(
                    "cuStreamCreateWithPriority",
                    () ->
                            cudart.cuStreamCreateWithPriority(
                                    stream, cudart.CU_STREAM_NON_BLOCKING, priority));
        }
    }

    /** Keeps the GPU's context from now on, because it has the idle streams. */
    private static Deque<CUstream_st> idle(CudaDevice device) {
        device.retain();
        return new ConcurrentLinkedDeque<>();
    }

    private CudaStream(CudaDevice device, CUstream_st stream) {
        super(device);
        this.stream = stream;
        idle = null;
        kept = new StreamOrderedRelease(this);
    }

    /**
     * Creates a stream that is independent of the default stream; the caller closes it. It may be
     * the CUDA stream of a closed one whose work was complete. The GPU's context lives until the
     * process ends.
     */
    public static CudaStream create(CudaDevice device) {
        return create(device, 0);
    }

    /**
     * As {@link #create(CudaDevice)}, with a priority: a lower number is a higher priority. CUDA
     * clamps it to the range from {@link CudaDevice#highestStreamPriority()} to 0.
     */
    public static CudaStream create(CudaDevice device, int priority) {
        return new CudaStream(device, priority);
    }

    /**
     * Wraps a {@code cudaStream_t} of another library, such as {@link Torch#currentCudaStream}; 0
     * is the default stream. It must outlive the result, and is not destroyed when that is closed.
     */
    public static CudaStream wrap(CudaDevice device, long handle) {
        return new CudaStream(device, new CUstream_st(CudaDriver.pointer(handle)));
    }

    /** {@return the {@code cudaStream_t} for other libraries; 0 is the default stream} */
    public long handle() {
        return stream().address();
    }

    /** Makes work queued later wait for an event of this or another GPU, as last recorded. */
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
     * Writes a 32-bit value after all previously queued work (release: an observer of the value
     * also sees the writes of that work).
     *
     * @param address the destination, a multiple of 4: memory of this GPU, of a peer to which
     *     access is enabled, or pinned host memory
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

    private static void requireAligned(long address) {
        if (address == 0 || address % Integer.BYTES != 0) {
            throw new IllegalArgumentException(
                    String.format(
                            "0x%x is not the address of a 32-bit word: it must be a multiple of 4"
                                    + " and not 0",
                            address));
        }
    }

    /**
     * Copies bytes between memory of this GPU, of a peer to which access is enabled, or pinned host
     * memory; no-op for 0 bytes. A copy between GPUs uses a copy engine, and NVLink if the GPUs are
     * linked.
     */
    @Override
    public void copyAsync(long destination, long source, long byteSize) {
        requireSize(byteSize);
        if (byteSize > 0) {
            // Not cuMemcpyAsync, which treats an unknown address as a host address.
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

    /** Sets bytes; no-op for none. */
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
     * Keeps the storage of arrays until this stream has executed all work queued so far, even if
     * the arrays are closed immediately. Does not block.
     *
     * <p>Why: libtorch gives the memory of a freed tensor to the next tensor that fits. This is
     * safe on the stream on which the tensor was <em>allocated</em>, because its work runs in
     * order. libtorch does not know of work on other streams: {@code Tensor.record_stream} would
     * record it, but is not in the stable C ABI. So an array could be overwritten if it is closed
     * while a side stream still uses it. This method holds a reference to each tensor (and to the
     * {@link NativeMemory} of a view) and records an event on this stream. Later calls, on any
     * stream, release arrays whose event is complete; {@link #releasePassed()} does only that.
     *
     * <p>During {@link CudaGraph#capture} on this thread, the graph keeps the arrays until it is
     * closed, because every replay uses them.
     *
     * @param arrays the arrays that work queued on this stream reads or writes; on any device
     * @throws IllegalStateException if the stream is being captured, but not by {@link
     *     CudaGraph#capture} on this thread
     */
    public void keepAlive(NDArray... arrays) {
        requireOpen();
        kept.hold(arrays);
    }

    /** Releases arrays of {@link #keepAlive} whose work is complete. Does not block. */
    public void releasePassed() {
        kept.releasePassed();
    }

    /** {@return whether work queued now is captured instead of executed} */
    public boolean isCapturing() {
        requireOpen();
        CallingThread thread = CallingThread.get();
        if (thread.stream == this) {
            return thread.capturing;
        }
        if (thread.captured == null) {
            thread.captured = new IntPointer(1);
        }
        IntPointer status = (IntPointer) thread.captured; // An array would be copied.
        boolean pushed = device().enter(thread);
        try {
            CudaDriver.check(cudart.cuStreamIsCapturing(stream, status), "cuStreamIsCapturing");
        } finally {
            CudaDriver.leave(thread, pushed);
        }
        return status.get() != cudart.CU_STREAM_CAPTURE_STATUS_NONE;
    }

    /** {@return whether all work is complete} Does not block. */
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
     * Waits until all work is complete. The thread may spin; {@link CudaEvent#synchronize()} of an
     * event with timing sleeps.
     *
     * @throws CudaException also for an error of earlier work, such as {@code
     *     CUDA_ERROR_ILLEGAL_ADDRESS}, after which the context cannot be used any more
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
        if (idle == null) {
            return;
        }
        if (device().in(() -> cudart.cuStreamQuery(stream)) == cudart.CUDA_SUCCESS) {
            idle.push(stream);
        } else {
            // Does not block: CUDA destroys the stream after its work.
            device().call("cuStreamDestroy", () -> cudart.cuStreamDestroy(stream));
        }
    }
}
