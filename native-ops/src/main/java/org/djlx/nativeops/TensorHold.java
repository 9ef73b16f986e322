/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops;

import ai.djl.ndarray.NDArray;
import ai.djl.pytorch.engine.PtNDArray;
import java.nio.ByteBuffer;

/**
 * Keeps an array's storage alive, even if the array is closed, and tells where its elements are: an
 * {@linkplain Torch#alias alias} for one who needs no array, at a fraction of its cost.
 *
 * <p>What it tells is that of the moment it was created. Closing it is not safe while another
 * thread uses the memory; apart from that it can be used by several threads.
 */
public final class TensorHold implements AutoCloseable {

    private final long address;
    private final long count;
    private final ScalarType type;
    private final boolean contiguous;
    private long handle;
    // What the elements lie in, if it is not libtorch's.
    private NativeMemory memory;
    private ByteBuffer buffer;

    /**
     * Takes hold of an array's storage.
     *
     * @param array the array
     * @throws IllegalArgumentException if the array is null, closed, of another engine, sparse, an
     *     array of strings or quantized
     */
    public TensorHold(NDArray array) {
        long tensor = Arguments.tensor(array, "the array");
        PtNDArray original = (PtNDArray) array;
        type = Tensors.scalarType(tensor);
        Scratch scratch = Scratch.get();
        AotiTorch.check(AotiTorch.aoti_torch_get_data_ptr(tensor, scratch.slot(0)), "TensorHold");
        address = scratch.getLong(0);
        AotiTorch.check(AotiTorch.aoti_torch_get_dim(tensor, scratch.slot(0)), "TensorHold");
        long expected = 1;
        boolean dense = true;
        // Row-major order, whatever the strides of dimensions of size 1.
        for (long dimension = scratch.getLong(0) - 1; dimension >= 0; dimension--) {
            AotiTorch.check(
                    AotiTorch.aoti_torch_get_size(tensor, dimension, scratch.slot(0)),
                    "TensorHold");
            AotiTorch.check(
                    AotiTorch.aoti_torch_get_stride(tensor, dimension, scratch.slot(1)),
                    "TensorHold");
            long size = scratch.getLong(0);
            dense &= size == 1 || scratch.getLong(1) == expected;
            expected *= size;
        }
        count = expected;
        contiguous = dense || count == 0;
        AotiTorch.check(
                AotiTorch.aoti_torch_new_tensor_handle(tensor, scratch.slot(0)), "TensorHold");
        handle = scratch.getLong(0);
        memory = original instanceof MemoryView view ? view.retainMemory() : null;
        buffer = BufferOfArray.get(original);
    }

    /**
     * Returns the address of the first element, on the array's device.
     *
     * @return the address; 0 if there are no elements
     */
    public long address() {
        return address;
    }

    /**
     * Returns the number of elements.
     *
     * @return the number
     */
    public long count() {
        return count;
    }

    /**
     * Returns the element type.
     *
     * @return the type
     */
    public ScalarType type() {
        return type;
    }

    /**
     * Tells whether the elements lie one after the other in row-major order.
     *
     * @return as {@link Torch#isContiguous}
     */
    public boolean isContiguous() {
        return contiguous;
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
