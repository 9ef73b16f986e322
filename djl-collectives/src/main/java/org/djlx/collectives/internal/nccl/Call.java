/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.nccl;

import java.util.List;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.nccl.NcclCommunicator;

/**
 * What an operation does on the GPU.
 *
 * @param body calls NCCL, or launches a kernel
 * @param in what is read; kept until the operation has ended
 * @param out what is written, or both
 * @param detail what must fit the calls of other ranks besides the operation's signature
 * @param byNccl whether NCCL runs it, which may wait for other ranks before it is on the stream
 */
record Call(
        Body body, List<DeviceTensor> in, List<DeviceTensor> out, long[] detail, boolean byNccl) {

    Call(Body body, List<DeviceTensor> in, List<DeviceTensor> out, long[] detail) {
        this(body, in, out, detail, true);
    }

    /** Calls NCCL, or launches a kernel. */
    @FunctionalInterface
    interface Body {

        /** Enqueues the operation on the queue's stream; does not wait. */
        void enqueue(NcclCommunicator nccl, CudaStream stream);

        /** Gives up the tensors, at once or later, when the operation has failed. */
        default void releaseFailed(Runnable release) {
            release.run();
        }
    }

    /** Gives up the tensors. */
    void release() {
        in.forEach(DeviceTensor::close);
        out.forEach(DeviceTensor::close);
    }
}
