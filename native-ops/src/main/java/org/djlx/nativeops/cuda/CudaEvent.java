/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops.cuda;

import org.bytedeco.cuda.cudart.CUevent_st;
import org.bytedeco.cuda.global.cudart;
import org.djlx.nativeops.host.CallingThread;

/**
 * A mark in the work of a stream, for which other streams and the host can wait. It may be recorded
 * any number of times; who waits or asks means the last time. Methods may be called by any thread.
 *
 * <p>Closing it is safe while streams wait for it.
 */
public final class CudaEvent extends CudaResource {

    // Without CU_EVENT_BLOCKING_SYNC, for which the GPU interrupts the host each time.
    private static final int ORDER_ONLY = cudart.CU_EVENT_DISABLE_TIMING;
    private static final int TIMING = cudart.CU_EVENT_BLOCKING_SYNC;

    private final CUevent_st event = new CUevent_st();

    private CudaEvent(CudaDevice device, int flags) {
        super(device);
        create("cuEventCreate", () -> cudart.cuEventCreate(event, flags));
    }

    /**
     * Creates an event without a time, the cheaper kind.
     *
     * @param device the GPU whose streams it can be recorded on
     * @return the event, to be closed by the caller
     */
    public static CudaEvent create(CudaDevice device) {
        return new CudaEvent(device, ORDER_ONLY);
    }

    /**
     * Creates an event that remembers when the GPU passed it.
     *
     * @param device the GPU whose streams it can be recorded on
     * @return the event, to be closed by the caller
     */
    public static CudaEvent createTiming(CudaDevice device) {
        return new CudaEvent(device, TIMING);
    }

    /**
     * Puts the mark behind all work that a stream has been given so far.
     *
     * @param stream a stream of the same GPU
     * @throws IllegalArgumentException if it is of another GPU
     */
    public void record(CudaStream stream) {
        device().requireSame(stream.device(), "the stream");
        CUevent_st handle = event();
        stream.record(handle);
    }

    /**
     * Tells whether the GPU has passed the mark. Never waits.
     *
     * @return whether it has; true if the event was never recorded
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
     * Waits until the GPU has passed the mark. The thread sleeps meanwhile if the event is
     * {@linkplain #createTiming for timing}, and may spin otherwise.
     */
    public void synchronize() {
        call("cuEventSynchronize", () -> cudart.cuEventSynchronize(event));
    }

    /**
     * Returns the time from one mark to another.
     *
     * @param start the earlier mark; both must have been created for timing, and passed
     * @return the time in milliseconds, as the GPU measured it
     * @throws CudaException with {@code CUDA_ERROR_INVALID_HANDLE} if one is not for timing or not
     *     recorded, {@code CUDA_ERROR_NOT_READY} if the GPU has not passed both
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
