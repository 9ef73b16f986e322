/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.trace;

/**
 * Something that a stream of a rank did.
 *
 * @param stream which stream
 * @param name what
 * @param start when it began, in microseconds
 * @param end when it had ended
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
