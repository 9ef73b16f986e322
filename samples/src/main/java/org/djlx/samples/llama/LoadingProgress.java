/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.llama;

import ai.djl.util.Progress;
import java.io.PrintWriter;

/** Says how loading goes, ten times at most. Called by one thread. */
final class LoadingProgress implements Progress {

    private static final int STEPS = 10;

    private final PrintWriter out;
    private long start;
    private String what;
    private long all;
    private long done;
    private long told;

    LoadingProgress(PrintWriter out) {
        this.out = out;
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
        out.printf("%s: %s%n", message, trailingMessage);
        out.flush();
    }

    @Override
    public void start(long initialProgress) {
        update(initialProgress);
    }

    @Override
    public void end() {
        out.printf("%s: done in %.1f s%n", what, (System.nanoTime() - start) / 1e9);
        out.flush();
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
            out.printf("%s: %d %%%n", what, step * 100 / STEPS);
            out.flush();
        }
    }
}
