/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.bench;

import ai.djl.ndarray.NDArray;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.BrokenBarrierException;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * Where ranks that are threads wait for each other without an operation of a group, which would be
 * measured or, where ranks share a GPU, impossible.
 */
final class Meeting {

    private static final long TIMEOUT_MINUTES = 3;

    private final CyclicBarrier barrier;
    private final NDArray[] shown;
    private volatile boolean left;

    Meeting(int ranks) {
        barrier = new CyclicBarrier(ranks);
        shown = new NDArray[ranks];
    }

    /** Waits for all ranks. */
    void await() {
        if (left) {
            throw new IllegalStateException("another rank failed");
        }
        try {
            barrier.await(TIMEOUT_MINUTES, TimeUnit.MINUTES);
        } catch (BrokenBarrierException | TimeoutException e) {
            throw new IllegalStateException("another rank failed, or is late", e);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException("interrupted while waiting for the other ranks", e);
        }
    }

    /** Lets the other ranks fail instead of waiting for this one. */
    void leave() {
        left = true;
        barrier.reset();
    }

    /**
     * Shows an array, of which all work is done, to the other ranks.
     *
     * @return copies of all ranks' arrays on the device of this one's, and with its manager
     */
    List<NDArray> exchange(int rank, NDArray array) {
        shown[rank] = array;
        await();
        List<NDArray> copies =
                Arrays.stream(shown).map(other -> other.toDevice(array.getDevice(), true)).toList();
        copies.forEach(copy -> copy.attach(array.getManager()));
        await();
        return copies;
    }
}
