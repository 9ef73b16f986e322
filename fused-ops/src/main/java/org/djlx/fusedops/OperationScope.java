/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import java.util.ArrayList;
import java.util.List;
import org.djlx.collectives.Work;
import org.djlx.nativeops.NoGradient;
import org.djlx.nativeops.ScalarType;
import org.djlx.nativeops.TensorHold;

/**
 * What one operation needs until it has ended: arrays made for it, and holds on the caller's. On a
 * GPU the work is enqueued at once and libtorch reuses memory in the stream's order, so all can go
 * when that is done; on the CPU the operation may still run when the caller has given up waiting.
 */
final class OperationScope {

    private final boolean gpu;
    private final List<AutoCloseable> closeables = new ArrayList<>(4);
    private NDManager temporary;

    OperationScope(boolean gpu) {
        this.gpu = gpu;
    }

    /** The manager of arrays that views need on the way. */
    NDManager temporary(NDArray like) {
        if (temporary == null) {
            temporary = like.getManager().newSubManager();
            closeables.add(temporary);
        }
        return temporary;
    }

    /** A copy of an array, whose elements lie one after the other. */
    NDArray copy(NDArray array, ScalarType type) {
        return NoGradient.get(() -> Axes.copy(temporary(array), array, type));
    }

    /** Closes an array with the operation. */
    NDArray add(NDArray array) {
        closeables.add(array);
        return array;
    }

    /** Keeps what an operation on the CPU uses. */
    void hold(NDArray... arrays) {
        for (NDArray array : arrays) {
            if (!gpu) {
                closeables.add(new TensorHold(array));
            }
        }
    }

    /** Closes all when nothing uses it any more. */
    void closeAfter(Work work) {
        if (gpu || closeables.isEmpty()) {
            close();
        } else {
            work.getFuture().whenComplete((result, failure) -> close());
        }
    }

    /** Closes all, as nothing was issued. */
    void close() {
        for (AutoCloseable closeable : closeables) {
            try {
                closeable.close();
            } catch (RuntimeException e) {
                throw e;
            } catch (Exception e) {
                throw new IllegalStateException(e);
            }
        }
        closeables.clear();
    }
}
