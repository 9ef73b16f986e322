/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.bench;

import ai.djl.ndarray.NDArray;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import org.djlx.nativeops.NativeCalls;

/**
 * One rank's measurement of several ways to do an operation: all of them once until they are warm,
 * then in turns, since clocks drift with heat and power.
 */
final class SideBySide {

    /** The calls before those that are measured. */
    static final int WARM_UP = 200;

    /** Of these, the ones that are kept apart. */
    static final int FIRST = 20;

    private static final int CALLS = 10; // of each in a round
    private static final int COUNTED = 20;
    private static final int MAX_IN_FLIGHT = 50;

    private final Marks marks;
    private final Meeting meeting;
    private final int rounds;

    SideBySide(Marks marks, Meeting meeting, int rounds) {
        this.marks = marks;
        this.meeting = meeting;
        this.rounds = rounds;
    }

    /** What one contender has shown so far. */
    private static final class Samples {
        private final double[] first = new double[FIRST];
        private final double[] gpu;
        private final double[] host;
        private double driverCalls;
        private double otherCalls;

        Samples(int calls) {
            gpu = new double[calls];
            host = new double[calls];
        }

        CallTimes times() {
            return new CallTimes(
                    tenths(median(gpu)),
                    tenths(median(host)),
                    tenths(median(first)),
                    tenths(Arrays.stream(first).sum()),
                    tenths(driverCalls),
                    tenths(otherCalls));
        }
    }

    /** Measures; all ranks call this with the same contenders in the same order. */
    Map<String, CallTimes> measure(Map<String, Contender> contenders) {
        Map<String, Samples> samples = new LinkedHashMap<>();
        contenders.forEach(
                (name, contender) -> {
                    samples.put(name, new Samples(rounds * CALLS));
                    warmUp(contender, samples.get(name));
                });
        for (int round = 0; round < rounds; round++) {
            int offset = round * CALLS;
            contenders.forEach((name, contender) -> time(contender, samples.get(name), offset));
        }
        contenders.forEach((name, contender) -> count(contender, samples.get(name)));
        Map<String, CallTimes> times = new LinkedHashMap<>();
        samples.forEach((name, all) -> times.put(name, all.times()));
        return times;
    }

    private void warmUp(Contender contender, Samples samples) {
        meet();
        for (int i = 0; i < WARM_UP; i++) {
            double micros = call(contender);
            if (i < FIRST) {
                samples.first[i] = micros;
            }
            if (i % MAX_IN_FLIGHT == MAX_IN_FLIGHT - 1) {
                marks.synchronize();
            }
        }
    }

    private void time(Contender contender, Samples samples, int offset) {
        meet();
        marks.set(0);
        for (int i = 0; i < CALLS; i++) {
            samples.host[offset + i] = call(contender);
            marks.set(i + 1);
        }
        marks.synchronize();
        for (int i = 0; i < CALLS; i++) {
            samples.gpu[offset + i] = marks.micros(i, i + 1);
        }
    }

    /** Apart from the times: marks are calls of the driver too. */
    private void count(Contender contender, Samples samples) {
        meet();
        NativeCalls before = NativeCalls.ofThread();
        for (int i = 0; i < COUNTED; i++) {
            call(contender);
        }
        NativeCalls after = NativeCalls.ofThread();
        samples.driverCalls = (after.driver() - before.driver()) / (double) COUNTED;
        samples.otherCalls = (after.other() - before.other()) / (double) COUNTED;
    }

    private void meet() {
        marks.synchronize();
        meeting.await();
    }

    /** Calls, and returns the microseconds that it takes the thread. */
    private static double call(Contender contender) {
        long start = System.nanoTime();
        NDArray result = contender.call();
        long nanos = System.nanoTime() - start;
        if (result != null) {
            result.close();
        }
        return nanos / 1e3;
    }

    private static double median(double[] values) {
        double[] sorted = values.clone();
        Arrays.sort(sorted);
        return sorted[sorted.length / 2];
    }

    private static double tenths(double value) {
        return Math.round(10 * value) / 10.0;
    }
}
