// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.trace;

/**
 * One step of a stream of a rank.
 *
 * @param stream the stream
 * @param name the step's name
 * @param start the start in microseconds
 * @param end the end in microseconds
 */
record Span(Stream stream, String name, double start, double end) {

    /** The streams of a rank. */
    enum Stream {
        CURRENT("current stream: computes, waits for signals"),
        SIDE("side stream: pushes to the other ranks");

        private final String title;

        Stream(String title) {
            this.title = title;
        }

        String title() {
            return title;
        }
    }
}
