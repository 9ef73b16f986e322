// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import java.util.Arrays;

/** Times the calling thread: marks are host clock times; a recording runs the work again. */
class HostLane implements Lane {

    private long[] nanos = new long[16];

    @Override
    public void set(int mark) {
        if (mark >= nanos.length) {
            nanos = Arrays.copyOf(nanos, 2 * mark);
        }
        nanos[mark] = System.nanoTime();
    }

    @Override
    public void synchronize() {}

    @Override
    public double micros(int from, int to) {
        return (nanos[to] - nanos[from]) / 1e3;
    }

    @Override
    public Recording record(Runnable work) {
        return work::run;
    }

    @Override
    public void close() {}
}
