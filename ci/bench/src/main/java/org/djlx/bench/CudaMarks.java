/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.bench;

import java.util.ArrayList;
import java.util.List;
import org.djlx.nativeops.CudaDevice;
import org.djlx.nativeops.CudaEvent;
import org.djlx.nativeops.CudaStream;

/** Events of a GPU on one stream. */
final class CudaMarks implements Marks {

    private final CudaDevice device;
    private final CudaStream stream;
    private final List<CudaEvent> events = new ArrayList<>();

    /** The device and the stream stay the caller's. */
    CudaMarks(CudaDevice device, CudaStream stream) {
        this.device = device;
        this.stream = stream;
    }

    @Override
    public void set(int mark) {
        while (events.size() <= mark) {
            events.add(CudaEvent.createTiming(device));
        }
        events.get(mark).record(stream);
    }

    @Override
    public void synchronize() {
        // Not for the device: other ranks may share it, and what they have issued since then may
        // wait for this one.
        stream.synchronize();
    }

    @Override
    public double micros(int from, int to) {
        return 1000.0 * events.get(to).elapsedMillisSince(events.get(from));
    }

    @Override
    public void close() {
        events.forEach(CudaEvent::close);
    }
}
