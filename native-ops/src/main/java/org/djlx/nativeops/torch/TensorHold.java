/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops.torch;

import ai.djl.ndarray.NDArray;
import ai.djl.pytorch.engine.PtNDArray;
import java.nio.ByteBuffer;
import org.djlx.nativeops.host.NativeMemory;
import org.djlx.nativeops.host.Scratch;

/**
 * Keeps an array's storage alive, even if the array is closed: an {@linkplain Torch#alias alias}
 * for one who needs no array but what {@link Torch#info} tells, at a fraction of its cost. Closing
 * it is not safe while another thread uses the memory.
 */
public final class TensorHold implements AutoCloseable {

    private long handle;
    // What the elements lie in, if it is not libtorch's.
    private NativeMemory memory;
    private ByteBuffer buffer;

    /**
     * Takes hold of an array's storage.
     *
     * @param array the array
     * @throws IllegalArgumentException if the array is null, closed, of another engine, sparse, or
     *     an array of strings
     */
    public TensorHold(NDArray array) {
        long tensor = TorchChecks.tensor(array, "the array");
        Scratch scratch = Scratch.get();
        AotiTorch.check(
                AotiTorch.aoti_torch_new_tensor_handle(tensor, scratch.slot(0)), "TensorHold");
        handle = scratch.getLong(0);
        PtNDArray original = (PtNDArray) array;
        memory = original instanceof MemoryView view ? view.retainMemory() : null;
        buffer = BufferOfArray.get(original);
    }

    /** Gives the storage up. Idempotent. */
    @Override
    public synchronized void close() {
        if (handle != 0) {
            AotiTorch.check(AotiTorch.aoti_torch_delete_tensor_object(handle), "TensorHold.close");
            handle = 0;
            buffer = null;
            if (memory != null) {
                memory.release();
                memory = null;
            }
        }
    }
}
