/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.trace;

import java.util.ArrayList;
import java.util.List;
import java.util.function.DoubleSupplier;

/**
 * The steps of one rank's operator, noted by its streams, which may be several threads. What the
 * current stream does between two steps is the operator's computation, which is given to it past
 * the {@link org.djlx.collectives.P2pStream}.
 */
final class Steps {

    static final String COMPUTE = "compute";

    // Between two steps that follow at once a few microseconds pass, without work.
    private static final double SHORTEST_COMPUTE_MICROS = 5;

    private record Step(
            Span.Stream stream, String name, DoubleSupplier start, DoubleSupplier end) {}

    private final List<Step> steps = new ArrayList<>();

    /** Does a step, and notes when. */
    void run(Span.Stream stream, Timeline timeline, String name, Runnable work) {
        DoubleSupplier start = timeline.mark();
        work.run();
        DoubleSupplier end = timeline.mark();
        synchronized (this) {
            steps.add(new Step(stream, name, start, end));
        }
    }

    /** Returns what the streams did, when all of it is done. */
    synchronized List<Span> spans() {
        List<Span> spans = new ArrayList<>();
        double last = Double.NaN; // the end of the current stream's step before
        for (Step step : steps) {
            double start = step.start.getAsDouble();
            double end = step.end.getAsDouble();
            if (step.stream == Span.Stream.CURRENT) {
                if (start - last >= SHORTEST_COMPUTE_MICROS) {
                    spans.add(new Span(step.stream, COMPUTE, last, start));
                }
                last = end;
            }
            if (!step.name.isEmpty()) {
                spans.add(new Span(step.stream, step.name, start, end));
            }
        }
        return spans;
    }
}
