// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import org.djlx.nativeops.host.NativeMemory;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * The collectives of the library to compare with, on bfloat16 arrays; reductions are sums. Arrays
 * stay in use until the rank's stream has passed the call.
 */
interface Baseline extends AutoCloseable {

    void allReduce(NDArray tensor);

    void allGather(NDArray all, NDArray part);

    /** Reduce-scatters; {@code part} gets this rank's part. */
    void reduceScatter(NDArray part, NDArray all);

    /** Sends row r of {@code inputs} to rank r; row r of {@code outputs} comes from rank r. */
    void allToAll(NDArray outputs, NDArray inputs);

    /** Broadcasts from rank 0. */
    void broadcast(NDArray tensor);

    record Window(NativeMemory memory, Runnable free) {

        NDArray view(NDManager manager, long offset, Shape shape) {
            return Torch.view(manager, memory, offset, shape, ScalarType.BFLOAT16);
        }
    }

    /**
     * Creates a window, which the caller frees; all ranks call this together. Null on all ranks if
     * the library has no such memory.
     */
    Window window(long byteSize);

    @Override
    void close();
}
