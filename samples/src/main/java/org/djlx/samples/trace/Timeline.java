/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.trace;

import java.util.function.DoubleSupplier;
import org.djlx.nativeops.CudaDevice;
import org.djlx.nativeops.CudaEvent;
import org.djlx.nativeops.CudaStream;

/** Tells when a stream of one rank is at a point. */
@FunctionalInterface
interface Timeline {

    /**
     * Marks the point behind all that the stream has been given.
     *
     * @return when it was reached, in microseconds, to be asked for when all work is done
     */
    DoubleSupplier mark();

    /** The calling thread is the stream. */
    static Timeline ofHost() {
        return () -> {
            double micros = System.nanoTime() / 1e3;
            return () -> micros;
        };
    }

    /**
     * A stream of a GPU. Its events live as long as the process, which traces one operator.
     *
     * @param start the beginning, recorded on a stream of the same GPU
     */
    static Timeline of(CudaDevice device, CudaStream stream, CudaEvent start) {
        return () -> {
            CudaEvent event = CudaEvent.createTiming(device);
            event.record(stream);
            return () -> 1000.0 * event.elapsedMillisSince(start);
        };
    }
}
