// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.host;

/** State of a thread that calls native code: its CUDA context, call counts and scratch memory. */
public final class CallingThread {

    private static final ThreadLocal<CallingThread> LOCAL =
            ThreadLocal.withInitial(CallingThread::new);

    // The threads seen last, by their ids. An operation calls get() some thirty times, and in JDK
    // 17 a ThreadLocal lookup is a native call until C2 has compiled it. The entry of an ended
    // thread stays until another thread replaces it.
    private static final CallingThread[] RECENT = new CallingThread[64];

    private final Thread thread = Thread.currentThread();

    /** The context that {@code CurrentStreams.hold} keeps current; 0 outside of it. */
    public long context;

    /**
     * The buffer into which {@code CudaDriver} reads the current context. An Object, because its
     * class is in the CUDA presets.
     */
    public Object current;

    /** The current stream that {@code CurrentStreams.hold} has read; null outside of it. */
    public Object stream;

    /** Whether {@link #stream} is being captured. */
    public boolean capturing;

    /** As {@link #current}, the word into which the driver writes whether a stream is captured. */
    public Object captured;

    public long driverCalls;

    public long otherCalls;

    private Scratch scratch; // created on first use

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
