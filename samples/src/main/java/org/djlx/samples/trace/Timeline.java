/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.trace;

import java.util.function.DoubleSupplier;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaEvent;
import org.djlx.nativeops.cuda.CudaStream;

/** Measures when a stream of one rank reaches a point. */
@FunctionalInterface
interface Timeline {

    /**
     * Marks the point after all work issued to the stream.
     *
     * @return supplies the time of the point in microseconds, once all work is done
     */
    DoubleSupplier mark();

    /** Returns the timeline of a stream that is the calling thread. */
    static Timeline ofHost() {
        return () -> {
            double micros = System.nanoTime() / 1e3;
            return () -> micros;
        };
    }

    /**
     * Returns the timeline of a CUDA stream. Its events are never freed: a process traces one
     * operator.
     *
     * @param start the origin of times, recorded on a stream of the same GPU
     */
    static Timeline of(CudaDevice device, CudaStream stream, CudaEvent start) {
        return () -> {
            CudaEvent event = CudaEvent.createTiming(device);
            event.record(stream);
            return () -> 1000.0 * event.elapsedMillisSince(start);
        };
    }
}
