/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.List;
import org.djlx.collectives.Work;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.TensorHold;
import org.djlx.nativeops.torch.Torch;

/**
 * What one operation needs until it has ended: arrays made for it, and holds on the caller's. On a
 * GPU the work is enqueued at once and libtorch reuses memory in the stream's order, so all can go
 * when that is done; on the CPU the operation may still run when the caller has given up waiting.
 */
final class OperationScope {

    private final boolean gpu;
    private final List<AutoCloseable> closeables = new ArrayList<>(4);
    private final NDManager manager; // outlives the operation

    OperationScope(boolean gpu, NDManager manager) {
        this.gpu = gpu;
        this.manager = manager;
    }

    /** Another array of the same elements, in the same place. */
    NDArray alias(NDArray array) {
        return add(Torch.alias(manager, array));
    }

    /** A new array, not initialised. */
    NDArray empty(Shape shape, ScalarType type) {
        return add(Torch.empty(manager, shape, type));
    }

    /** A copy of an array whose elements lie one after the other; itself if they do. */
    NDArray contiguous(NDArray array, ScalarType type) {
        return Torch.isContiguous(array) ? array : copy(array, type);
    }

    /** A copy of an array, whose elements lie one after the other. */
    NDArray copy(NDArray array, ScalarType type) {
        NDArray copy = empty(array.getShape(), type);
        NoGradient.run(() -> Torch.copy(copy, array));
        return copy;
    }

    /** A copy of an array with a dimension in front, the elements one after the other. */
    NDArray front(NDArray array, int dimension, ScalarType type) {
        NDArray view = alias(array);
        return copy(NoGradient.get(() -> add(Axes.move(view, dimension, 0))), type);
    }

    /** Closes an array with the operation, once or more often. */
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
        if (gpu) {
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
