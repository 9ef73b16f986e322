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
 * References to the storage of arrays, which keep it alive after the arrays are closed. They belong
 * to no manager; only {@link #close} releases them.
 */
public final class HeldArrays implements AutoCloseable {

    private final long[] tensors;
    private final NativeMemory[] memories;
    private final ByteBuffer[] buffers;
    private int count;

    /**
     * Takes references.
     *
     * @param arrays the arrays
     */
    public HeldArrays(NDArray... arrays) {
        tensors = new long[arrays.length];
        memories = new NativeMemory[arrays.length];
        buffers = new ByteBuffer[arrays.length];
        boolean complete = false;
        try {
            for (NDArray array : arrays) {
                hold(array);
            }
            complete = true;
        } finally {
            if (!complete) {
                close();
            }
        }
    }

    private void hold(NDArray array) {
        long tensor = TorchChecks.tensor(array, "the array");
        NativeMemory memory =
                array instanceof MemoryView ? ((MemoryView) array).retainMemory() : null;
        memories[count] = memory;
        buffers[count] = BufferOfArray.get((PtNDArray) array);
        count++;
        Scratch scratch = Scratch.get();
        AotiTorch.check(
                AotiTorch.aoti_torch_new_tensor_handle(tensor, scratch.slot(0)),
                "CudaStream.keepAlive");
        tensors[count - 1] = scratch.getLong(0);
    }

    @Override
    public void close() {
        while (count > 0) {
            count--;
            buffers[count] = null;
            if (tensors[count] != 0) {
                AotiTorch.check(
                        AotiTorch.aoti_torch_delete_tensor_object(tensors[count]),
                        "CudaStream.keepAlive");
            }
            if (memories[count] != null) {
                memories[count].release();
            }
        }
    }
}
