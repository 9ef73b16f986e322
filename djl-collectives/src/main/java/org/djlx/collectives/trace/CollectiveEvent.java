// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.trace;

import jdk.jfr.Category;
import jdk.jfr.DataAmount;
import jdk.jfr.Description;
import jdk.jfr.Event;
import jdk.jfr.Label;
import jdk.jfr.Name;
import jdk.jfr.StackTrace;
import jdk.jfr.Timespan;
import org.djlx.collectives.spi.Operation;

/** A JFR event for one operation; created only while a recording has it enabled. */
@Name("org.djlx.Collective")
@Label("Collective")
@Category("DJL Collectives")
@Description("An operation of a process group, from the start to the end of its execution")
@StackTrace(false) // It would show the executing thread, not the caller.
final class CollectiveEvent extends Event {

    private static final CollectiveEvent PROBE = new CollectiveEvent();

    @Label("Kind")
    private String kind;

    @Label("Group")
    private String group;

    @Label("Rank")
    private int rank;

    @Label("Sequence")
    @Description("The operation's number within its group")
    private long sequence;

    @Label("Bytes")
    @Description("The size of the tensor whose shape all ranks agree on")
    @DataAmount
    private long bytes;

    @Label("Algorithm")
    @Description("How the backend did it, if there is more than one way")
    private String algorithm;

    @Label("State")
    private String state;

    @Label("Queued")
    @Description("From the call to the start of the execution")
    @Timespan(Timespan.NANOSECONDS)
    private long queued;

    /** Returns whether a recording has these events enabled. */
    static boolean isWanted() {
        return PROBE.isEnabled();
    }

    static CollectiveEvent begin(long queuedNanos) {
        CollectiveEvent event = new CollectiveEvent();
        event.queued = queuedNanos;
        event.begin();
        return event;
    }

    void commit(Operation operation, int ofRank, boolean success) {
        end();
        if (!shouldCommit()) {
            return;
        }
        kind = operation.type().toString();
        group = operation.group();
        rank = ofRank;
        sequence = operation.sequence();
        bytes = operation.byteSize();
        algorithm = operation.algorithm();
        state = success ? "completed" : "failed";
        commit();
    }
}
