// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import java.time.Duration;
import java.util.function.Consumer;

/** Prints the progress of slow tasks only: after a delay, the first line and all new lines. */
final class SlowProgress implements Consumer<String> {

    private final long quietNanos;
    private final Consumer<String> lines;
    private final long start = System.nanoTime();
    private String first; // the first line, until it is printed; otherwise null

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
