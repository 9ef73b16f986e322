/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.llm.djl;

import ai.djl.util.Progress;
import java.util.function.Consumer;

/** Says in words how loading goes, at most at each tenth. To be called by one thread at a time. */
public final class LoadingProgress implements Progress {

    private static final int STEPS = 10;

    private final Consumer<String> lines;
    private long start;
    private String what;
    private long all;
    private long done;
    private long told;

    /**
     * Says it to a log, or whatever else takes lines.
     *
     * @param lines takes each line, without its end
     */
    public LoadingProgress(Consumer<String> lines) {
        if (lines == null) {
            throw new IllegalArgumentException("what takes the lines of the progress is null");
        }
        this.lines = lines;
    }

    @Override
    public void reset(String message, long max) {
        reset(message, max, "");
    }

    @Override
    public void reset(String message, long max, String trailingMessage) {
        what = message;
        all = max;
        done = 0;
        told = 0;
        start = System.nanoTime();
        lines.accept(message + ": " + trailingMessage);
    }

    @Override
    public void start(long initialProgress) {
        update(initialProgress);
    }

    @Override
    public void end() {
        lines.accept(String.format("%s: done in %.1f s", what, (System.nanoTime() - start) / 1e9));
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
    public void update(long progress, String message) {
        done = progress;
        long step = all == 0 ? STEPS : done * STEPS / all;
        if (step > told && step < STEPS) {
            told = step;
            lines.accept(String.format("%s: %d %%", what, step * 100 / STEPS));
        }
    }
}
