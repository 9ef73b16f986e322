/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops.nccl;

import java.util.LinkedHashSet;
import java.util.Set;
import org.djlx.nativeops.NativeLibrary;

/**
 * Calls of one thread on one or several communicators that NCCL starts together, at the end of the
 * outermost group: sends and receives among them can wait for each other in any order, and one
 * thread can issue the calls of several ranks. The calls of a communicator in a group are all made
 * by one thread.
 */
public final class NcclGroup {

    private static final ThreadLocal<NcclGroup> CURRENT = new ThreadLocal<>();

    private final Set<NcclCommunicator> members = new LinkedHashSet<>();
    private int depth = 1;

    private NcclGroup() {}

    /** The group that this thread has begun, or null. */
    static NcclGroup current() {
        return CURRENT.get();
    }

    /** Adds a communicator; returns whether it is new in the group. */
    boolean add(NcclCommunicator communicator) {
        return members.add(communicator);
    }

    /** Begins a group; may be nested. */
    public static void begin() {
        NcclGroup group = CURRENT.get();
        if (group != null) {
            group.depth++;
            return;
        }
        NativeLibrary.NCCL.ensureAvailability();
        NcclCommunicator.check(Nccl.ncclGroupStart(), "ncclGroupStart", 0);
        CURRENT.set(new NcclGroup());
    }

    /**
     * Ends what {@link #begin} began; the outermost end starts the calls, and may wait for other
     * ranks as these may.
     *
     * @throws NcclException if a call cannot be started, which may then be so for all
     */
    public static void end() {
        NcclGroup group = CURRENT.get();
        group.depth--;
        if (group.depth > 0) {
            return;
        }
        CURRENT.remove();
        int code = Nccl.ncclGroupEnd();
        group.members.forEach(NcclCommunicator::exit);
        NcclCommunicator.check(code, "ncclGroupEnd", 0);
    }

    /**
     * Runs calls as a group.
     *
     * @param calls the calls
     * @throws NcclException see {@link #end}
     */
    public static void run(Runnable calls) {
        begin();
        try {
            calls.run();
        } finally {
            end();
        }
    }
}
