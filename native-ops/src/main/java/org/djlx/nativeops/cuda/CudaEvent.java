// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import org.bytedeco.cuda.cudart.CUevent_st;
import org.bytedeco.cuda.global.cudart;
import org.djlx.nativeops.host.CallingThread;

/**
 * A CUDA event: a point in a stream that other streams and the host can wait for. It may be
 * recorded any number of times; waits and queries refer to the last record. Thread-safe. May be
 * closed while streams wait for it.
 */
public final class CudaEvent extends CudaResource {

    // Without CU_EVENT_BLOCKING_SYNC, which makes the GPU interrupt the host on every event.
    private static final int ORDER_ONLY = cudart.CU_EVENT_DISABLE_TIMING;
    private static final int TIMING = cudart.CU_EVENT_BLOCKING_SYNC;

    private final CUevent_st event = new CUevent_st();

    private CudaEvent(CudaDevice device, int flags) {
        super(device);
        create("cuEventCreate", () -> cudart.cuEventCreate(event, flags));
    }

    /**
     * Creates an event without timing, which is cheaper, for streams of a GPU; the caller closes
     * it.
     */
    public static CudaEvent create(CudaDevice device) {
        return new CudaEvent(device, ORDER_ONLY);
    }

    /** Creates an event with timing; the caller closes it. */
    public static CudaEvent createTiming(CudaDevice device) {
        return new CudaEvent(device, TIMING);
    }

    /** Records the event on a stream of the same GPU, after all work queued so far. */
    public void record(CudaStream stream) {
        device().requireSame(stream.device(), "the stream");
        CUevent_st handle = event();
        stream.record(handle);
    }

    /**
     * {@return whether the GPU has passed the event; true if it was never recorded} Does not block.
     */
    public boolean query() {
        requireOpen();
        CallingThread thread = CallingThread.get();
        boolean pushed = device().enter(thread);
        int result;
        try {
            result = cudart.cuEventQuery(event);
        } finally {
            CudaDriver.leave(thread, pushed);
        }
        if (result == cudart.CUDA_ERROR_NOT_READY) {
            return false;
        }
        CudaDriver.check(result, "cuEventQuery");
        return true;
    }

    /**
     * Waits until the event is complete. The thread sleeps if the event {@linkplain #createTiming
     * has timing}; otherwise it may spin.
     */
    public void synchronize() {
        call("cuEventSynchronize", () -> cudart.cuEventSynchronize(event));
    }

    /**
     * {@return the time between two events in milliseconds, as the GPU measured it}
     *
     * @param start the earlier event; both must have timing and be complete
     * @throws CudaException with {@code CUDA_ERROR_INVALID_HANDLE} if an event has no timing or was
     *     not recorded, {@code CUDA_ERROR_NOT_READY} if an event is not complete
     */
    public float elapsedMillisSince(CudaEvent start) {
        float[] millis = new float[1];
        CUevent_st from = start.event();
        call("cuEventElapsedTime", () -> cudart.cuEventElapsedTime(millis, from, event));
        return millis[0];
    }

    CUevent_st event() {
        requireOpen();
        return event;
    }

    @Override
    void destroy() {
        device().call("cuEventDestroy", () -> cudart.cuEventDestroy(event));
    }
}
