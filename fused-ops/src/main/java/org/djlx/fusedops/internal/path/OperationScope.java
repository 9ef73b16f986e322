// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.path;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.List;
import org.djlx.collectives.Work;
import org.djlx.nativeops.host.NativeMemory;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.TensorHold;
import org.djlx.nativeops.torch.TensorTemplate;
import org.djlx.nativeops.torch.Torch;

/**
 * The temporary arrays of one operation, and holds on the caller's arrays.
 *
 * <ul>
 *   <li>On a GPU they are closed as soon as the work is enqueued: libtorch reuses memory in the
 *       order of the stream.
 *   <li>On the CPU they are closed when the operation has ended, which may be after the caller's
 *       wait has timed out.
 * </ul>
 */
public final class OperationScope implements AutoCloseable {

    private final boolean gpu;
    private final List<AutoCloseable> closeables = new ArrayList<>(4);
    private final List<NDArray> results = new ArrayList<>(2);
    private final NDManager manager; // outlives the operation

    OperationScope(boolean gpu, NDManager manager) {
        this.gpu = gpu;
        this.manager = manager;
    }

    /** Returns a view of memory, which outlives it; the caller closes the view. */
    public NDArray view(long address, Shape shape, ScalarType type, long byteSize) {
        if (byteSize == 0) {
            return Torch.empty(manager, shape, type);
        }
        NativeMemory memory = new NativeMemory(address, byteSize, manager.getDevice(), () -> {});
        return Torch.view(manager, memory, 0, shape, type);
    }

    public NDArray alias(NDArray array) {
        return add(Torch.alias(manager, array));
    }

    /** Returns a new array, not initialised. */
    public NDArray empty(Shape shape, ScalarType type) {
        return add(Torch.empty(manager, shape, type));
    }

    /** As {@link #empty}, from a template. */
    public TensorTemplate.Created create(TensorTemplate template) {
        TensorTemplate.Created created = template.create(manager);
        add(created.array());
        return created;
    }

    /**
     * Returns a new array for a result. It belongs to the caller unless {@link #abandon} is called.
     */
    public TensorTemplate.Created result(NDManager ofResult, TensorTemplate template) {
        TensorTemplate.Created created = template.create(ofResult);
        results.add(created.array());
        return created;
    }

    /** Returns a contiguous copy of an array, or the array if it is contiguous. */
    public NDArray contiguous(NDArray array, ScalarType type) {
        return Torch.isContiguous(array) ? array : copy(array, type);
    }

    public NDArray copy(NDArray array, ScalarType type) {
        NDArray copy = empty(array.getShape(), type);
        NoGradient.run(() -> Torch.copy(copy, array));
        return copy;
    }

    /** Returns a contiguous copy of an array with a dimension moved to the front. */
    public NDArray front(NDArray array, int dimension, ScalarType type) {
        NDArray view = alias(array);
        return copy(NoGradient.get(() -> add(Axes.move(view, dimension, 0))), type);
    }

    /** Closes an array with the operation. The same array may be added more than once. */
    public NDArray add(NDArray array) {
        closeables.add(array);
        return array;
    }

    /** Keeps the storage of arrays alive while an operation on the CPU uses it. */
    public void hold(NDArray... arrays) {
        for (NDArray array : arrays) {
            if (!gpu) {
                closeables.add(new TensorHold(array));
            }
        }
    }

    /** Closes all but the results when the operation does not use them any more. */
    public void closeAfter(Work work) {
        if (gpu) {
            close();
        } else {
            work.getFuture().whenComplete((result, failure) -> close());
        }
    }

    /** Closes all and the results, because nothing was issued. */
    public void abandon() {
        results.forEach(NDArray::close);
        close();
    }

    /** Closes all but the results. */
    @Override
    public void close() {
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
