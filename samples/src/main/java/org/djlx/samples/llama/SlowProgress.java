/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.llama;

import java.time.Duration;
import java.util.function.Consumer;

/**
 * Passes lines of progress on once they have taken a while, the first line included; what is quick
 * prints nothing.
 */
final class SlowProgress implements Consumer<String> {

    private final long quietNanos;
    private final Consumer<String> lines;
    private final long start = System.nanoTime();
    private String first; // held back; null if there is none

    SlowProgress(Duration quiet, Consumer<String> lines) {
        quietNanos = quiet.toNanos();
        this.lines = lines;
    }

    @Override
    public synchronized void accept(String line) {
        if (System.nanoTime() - start < quietNanos) {
            first = first == null ? line : first;
            return;
        }
        if (first != null) {
            lines.accept(first);
            first = null;
        }
        lines.accept(line);
    }
}
