/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives;

import com.sun.management.ThreadMXBean;
import java.lang.management.ManagementFactory;
import java.time.Duration;
import java.util.Arrays;
import java.util.Locale;
import jdk.jfr.Recording;
import org.djlx.nativeops.ScalarType;

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
        void run(FlightRecorder recorder, Operation operation);
    }

    /**
     * Prints the medians.
     *
     * @param args none
     */
    public static void main(String[] args) {
        measure("nothing", (recorder, operation) -> operation.setAlgorithm("none"));
        measure("three readings of the clock", TraceCost::readClock);
        measure("events, not recording", TraceCost::checkEvents);
        measure("flight recorder and events, not recording", TraceCost::report);
        try (Recording recording = new Recording()) {
            recording.enable("org.djlx.Collective");
            recording.start();
            measure("flight recorder and events, recording", TraceCost::report);
        }
    }

    private static void readClock(FlightRecorder recorder, Operation operation) {
        clock += System.nanoTime() + System.nanoTime() + System.nanoTime();
    }

    /** As often as an operation does. */
    private static void checkEvents(FlightRecorder recorder, Operation operation) {
        wanted = CollectiveEvent.isWanted();
        wanted = CollectiveEvent.isWanted();
    }

    private static void report(FlightRecorder recorder, Operation operation) {
        recorder.scheduled(operation);
        operation.started();
        operation.setAlgorithm("none");
        operation.ended(null);
    }

    private static void measure(String name, Body body) {
        Duration timeout = Duration.ofMinutes(1);
        Operation.Agreed agreed =
                new Operation.Agreed(ScalarType.FLOAT32, new long[] {2, 3}, ReduceOp.SUM, 0);
        Operation operation = new Operation(OpType.ALL_REDUCE, 1, "cost", timeout, agreed);
        ThreadMXBean threads = (ThreadMXBean) ManagementFactory.getThreadMXBean();
        double[] nanos = new double[REPEATS];
        long allocated = 0;
        try (Store store = new HashStore()) {
            GroupContext context =
                    new GroupContext("cost", 0, 1, store, new BackendOptions(timeout), null);
            FlightRecorder recorder =
                    new FlightRecorder(context, "none", FlightRecorder.DEFAULT_SIZE);
            for (int repeat = 0; repeat < REPEATS; repeat++) {
                long bytes = threads.getCurrentThreadAllocatedBytes();
                long begin = System.nanoTime();
                for (int i = 0; i < OPERATIONS; i++) {
                    body.run(recorder, operation);
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
