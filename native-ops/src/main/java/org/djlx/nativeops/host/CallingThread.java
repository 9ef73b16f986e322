/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops.host;

import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaDriver;

/** What this package notes for each thread that calls native code. */
public final class CallingThread {

    private static final ThreadLocal<CallingThread> LOCAL =
            ThreadLocal.withInitial(CallingThread::new);

    // Of the threads seen last, by their ids: an operation looks this up some thirty times, and in
    // JDK 17 a ThreadLocal is found by a native call until C2 has compiled it. A thread that has
    // ended stays here until another takes its place.
    private static final CallingThread[] RECENT = new CallingThread[64];

    private final Thread thread = Thread.currentThread();

    /** The context that {@link CudaDevice#within} keeps current; 0 outside of it. */
    public long context;

    /**
     * Where {@link CudaDriver} lets the driver write the current context; a class of the presets.
     */
    public Object current;

    public long driverCalls;
    public long otherCalls;

    private Scratch scratch; // once it is needed

    private CallingThread() {}

    public static CallingThread get() {
        Thread current = Thread.currentThread();
        int slot = (int) current.getId() & RECENT.length - 1;
        CallingThread found = RECENT[slot];
        if (found == null || found.thread != current) {
            found = LOCAL.get();
            RECENT[slot] = found;
        }
        return found;
    }

    Scratch scratch() {
        if (scratch == null) {
            scratch = new Scratch();
        }
        return scratch;
    }
}
