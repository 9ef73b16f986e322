/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops;

/** What this package notes for each thread that calls native code. */
final class CallingThread {

    private static final ThreadLocal<CallingThread> LOCAL =
            ThreadLocal.withInitial(CallingThread::new);

    /** The context that {@link CudaDevice#within} keeps current; 0 outside of it. */
    long context;

    /**
     * Where {@link CudaDriver} lets the driver write the current context; a class of the presets.
     */
    Object current;

    long driverCalls;
    long otherCalls;

    private CallingThread() {}

    static CallingThread get() {
        return LOCAL.get();
    }
}
