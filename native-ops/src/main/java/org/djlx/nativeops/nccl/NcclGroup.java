// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.nccl;

import java.util.LinkedHashSet;
import java.util.Set;
import org.djlx.nativeops.NativeLibrary;

/**
 * A group of calls ({@code ncclGroupStart}) by one thread on one or more communicators. NCCL starts
 * the calls together at the end of the outermost group. Sends and receives in a group can wait for
 * each other in any order, and one thread can make the calls of several ranks. One thread makes all
 * calls of a communicator in a group.
 */
public final class NcclGroup {

    private static final ThreadLocal<NcclGroup> CURRENT = new ThreadLocal<>();

    private final Set<NcclCommunicator> members = new LinkedHashSet<>();
    private int depth = 1;

    private NcclGroup() {}

    /** Returns the calling thread's group, or null. */
    static NcclGroup current() {
        return CURRENT.get();
    }

    /** Adds a communicator. Returns false if it was added before. */
    boolean add(NcclCommunicator communicator) {
        return members.add(communicator);
    }

    /** Begins a group. Groups may be nested. */
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
     * Ends a group. The outermost end starts the calls, and blocks if one of them blocks.
     *
     * @throws NcclException if a call cannot be started; then other calls may not be started either
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

    /** Runs code in a group. */
    public static void run(Runnable calls) {
        begin();
        try {
            calls.run();
        } finally {
            end();
        }
    }
}
