// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.trace;

import java.util.ArrayList;
import java.util.List;
import java.util.function.DoubleSupplier;
import java.util.function.Supplier;

/**
 * The steps of one rank's operator, recorded by its streams, possibly on several threads. The time
 * between two steps of the current stream is the operator's computation, which the operator issues
 * without a {@link org.djlx.collectives.p2p.P2pStream}.
 */
final class Steps {

    static final String COMPUTE = "compute";

    // Adjacent steps are a few microseconds apart even without work between them.
    private static final double SHORTEST_COMPUTE_MICROS = 5;

    private record Step(
            Span.Stream stream, String name, DoubleSupplier start, DoubleSupplier end) {}

    private final List<Step> steps = new ArrayList<>();

    /**
     * Runs a step and records its time.
     *
     * @param timeline marks the point after all work issued to the stream; the time of the point in
     *     microseconds is known once all work is done
     */
    void run(Span.Stream stream, Supplier<DoubleSupplier> timeline, String name, Runnable work) {
        DoubleSupplier start = timeline.get();
        work.run();
        DoubleSupplier end = timeline.get();
        synchronized (this) {
            steps.add(new Step(stream, name, start, end));
        }
    }

    /** Returns the steps of all streams, once their work is done. */
    synchronized List<Span> spans() {
        List<Span> spans = new ArrayList<>();
        double last = Double.NaN; // the end of the current stream's previous step
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
