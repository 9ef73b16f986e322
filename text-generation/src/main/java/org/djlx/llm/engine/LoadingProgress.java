// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.engine;

import ai.djl.util.Progress;
import java.util.function.Consumer;
import org.djlx.nativeops.host.Required;

/** Writes the progress of loading, one line for each 10 %. Not thread-safe. */
public final class LoadingProgress implements Progress {

    private static final int STEPS = 10;

    private final Consumer<String> lines;
    private long start;
    private String message;
    private long max;
    private long done;
    private long lastStep;

    /** {@code lines} receives each line, without line end; for example a logger. */
    public LoadingProgress(Consumer<String> lines) {
        this.lines = Required.argument("LoadingProgress: lines", lines);
    }

    @Override
    public void reset(String message, long max) {
        reset(message, max, "");
    }

    @Override
    public void reset(String message, long max, String trailingMessage) {
        this.message = message;
        this.max = max;
        done = 0;
        lastStep = 0;
        start = System.nanoTime();
        lines.accept(message + ": " + trailingMessage);
    }

    @Override
    public void start(long initialProgress) {
        update(initialProgress);
    }

    @Override
    public void end() {
        lines.accept(
                String.format("%s: done in %.1f s", message, (System.nanoTime() - start) / 1e9));
    }

    @Override
    public void increment(long increment) {
        update(done + increment);
    }

    @Override
    public void update(long progress) {
        update(progress, "");
    }

    @Override
    public void update(long progress, String trailingMessage) {
        done = progress;
        long step = max == 0 ? STEPS : done * STEPS / max;
        if (step > lastStep && step < STEPS) {
            lastStep = step;
            lines.accept(String.format("%s: %d %%", message, step * 100 / STEPS));
        }
    }
}
