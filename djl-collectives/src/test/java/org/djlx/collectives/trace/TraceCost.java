// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.trace;

import com.sun.management.ThreadMXBean;
import java.lang.management.ManagementFactory;
import java.time.Duration;
import java.util.Arrays;
import java.util.Locale;
import jdk.jfr.Recording;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.TestOperations;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation;
import org.djlx.collectives.store.HashStore;
import org.djlx.collectives.store.Store;
import org.djlx.nativeops.torch.ScalarType;

/**
 * Measures what the flight recorder and the events cost an operation, from its issue to its end,
 * and how much of that is three readings of the clock. A main class, to be run by hand on the test
 * class path.
 */
public final class TraceCost {

    private static final int OPERATIONS = 2_000_000;
    private static final int REPEATS = 9;

    private static long clock; // Written, so that no reading is left out.
    private static volatile boolean wanted;

    private TraceCost() {}

    /** Runs one operation's reports. */
    private interface Body {
        void run(GroupTrace trace, Operation operation);
    }

    /**
     * Prints the medians.
     *
     * @param args none
     */
    public static void main(String[] args) {
        measure("nothing", (trace, operation) -> operation.setAlgorithm("none"));
        measure("three readings of the clock", TraceCost::readClock);
        measure("events, not recording", TraceCost::checkEvents);
        measure("flight recorder and events, not recording", TraceCost::report);
        try (Recording recording = new Recording()) {
            recording.enable("org.djlx.Collective");
            recording.start();
            measure("flight recorder and events, recording", TraceCost::report);
        }
    }

    private static void readClock(GroupTrace trace, Operation operation) {
        clock += System.nanoTime() + System.nanoTime() + System.nanoTime();
    }

    /** As often as an operation does. */
    private static void checkEvents(GroupTrace trace, Operation operation) {
        wanted = CollectiveEvent.isWanted();
        wanted = CollectiveEvent.isWanted();
    }

    private static void report(GroupTrace trace, Operation operation) {
        TestOperations.schedule(operation, trace::scheduled);
        operation.started();
        operation.setAlgorithm("none");
        operation.ended(null);
    }

    private static void measure(String name, Body body) {
        Duration timeout = Duration.ofMinutes(1);
        Operation.Agreed agreed =
                new Operation.Agreed(ScalarType.FLOAT32, new long[] {2, 3}, ReduceOp.SUM, 0);
        Operation operation = TestOperations.create(OpType.ALL_REDUCE, 1, "cost", timeout, agreed);
        ThreadMXBean threads = (ThreadMXBean) ManagementFactory.getThreadMXBean();
        double[] nanos = new double[REPEATS];
        long allocated = 0;
        try (Store store = new HashStore()) {
            GroupContext context =
                    new GroupContext("cost", 0, 1, store, new BackendOptions(timeout), null);
            GroupTrace trace =
                    new GroupTrace(
                            new FlightRecorder(context, "none", "job", FlightRecorder.DEFAULT_SIZE),
                            dump -> {},
                            "",
                            () -> {});
            for (int repeat = 0; repeat < REPEATS; repeat++) {
                long bytes = threads.getCurrentThreadAllocatedBytes();
                long begin = System.nanoTime();
                for (int i = 0; i < OPERATIONS; i++) {
                    body.run(trace, operation);
                }
                nanos[repeat] = (double) (System.nanoTime() - begin) / OPERATIONS;
                allocated = threads.getCurrentThreadAllocatedBytes() - bytes;
            }
        }
        Arrays.sort(nanos);
        System.out.printf(
                Locale.ROOT,
                "%-45s %7.1f ns/op %7.1f bytes/op%n",
                name,
                nanos[REPEATS / 2],
                (double) allocated / OPERATIONS);
    }
}
