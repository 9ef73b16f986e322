// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import ai.djl.ndarray.NDArray;
import ai.djl.pytorch.engine.PtNDArray;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import org.djlx.nativeops.host.NativeMemory;
import org.djlx.nativeops.host.Scratch;

/**
 * A reference to an array's storage, which keeps the storage alive after the array is closed. Much
 * cheaper than an {@linkplain Torch#alias alias}, for callers that need only {@link Torch#info}. Do
 * not close it while another thread uses the memory.
 */
public final class TensorHold implements AutoCloseable {

    private long handle;
    // The owner of the elements, if libtorch does not own them; otherwise null.
    private NativeMemory memory;
    private ByteBuffer buffer;

    /**
     * Takes a reference.
     *
     * @throws IllegalArgumentException if the array is null, closed, of another engine, sparse, or
     *     an array of strings
     */
    public TensorHold(NDArray array) {
        this(TorchChecks.array(array, "the array"));
    }

    private TensorHold(PtNDArray original) {
        long tensor = TorchChecks.handle(original, "the array");
        Scratch scratch = Scratch.get();
        AotiTorch.check(AotiTensor.djlx_new_handle(tensor, scratch.slot(0)), "TensorHold");
        handle = scratch.getLong(0);
        memory = original instanceof MemoryView view ? view.retainMemory() : null;
        buffer = BufferOfArray.get(original);
    }

    /**
     * Takes a reference to an array that {@link Torch#info} accepts, which is not checked again.
     */
    public static TensorHold ofChecked(NDArray array) {
        return new TensorHold((PtNDArray) array);
    }

    /** Takes references to several arrays, or none if it throws; the caller closes them. */
    public static List<TensorHold> all(NDArray... arrays) {
        List<TensorHold> holds = new ArrayList<>(arrays.length);
        try {
            for (NDArray array : arrays) {
                holds.add(new TensorHold(array));
            }
        } catch (RuntimeException e) {
            holds.forEach(TensorHold::close);
            throw e;
        }
        return holds;
    }

    /** Releases the reference. Idempotent. */
    @Override
    public synchronized void close() {
        if (handle != 0) {
            AotiTorch.check(AotiTensor.djlx_delete_handle(handle), "TensorHold.close");
            handle = 0;
            buffer = null;
            if (memory != null) {
                memory.release();
                memory = null;
            }
        }
    }
}
