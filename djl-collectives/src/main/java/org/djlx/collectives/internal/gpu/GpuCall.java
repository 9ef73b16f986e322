// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.gpu;

import java.util.List;
import org.djlx.nativeops.cuda.CudaStream;

/**
 * The GPU part of an operation: the code that enqueues it, and its tensors.
 *
 * @param in the tensors that are only read; kept until the operation has ended
 * @param out the tensors that are written; kept until the operation has ended
 * @param detail values that must match the other ranks' values, in addition to the operation's
 *     signature
 * @param isConnected whether the operation uses the queue's {@link Connection}, which may wait for
 *     other ranks before the operation is on the stream; false for a kernel
 */
public record GpuCall(
        Body body,
        List<DeviceTensor> in,
        List<DeviceTensor> out,
        long[] detail,
        boolean isConnected) {

    @FunctionalInterface
    public interface Body {

        /**
         * Enqueues the operation; does not wait. Called on any thread, while no other operation of
         * the queue is being enqueued.
         */
        void enqueue(CudaStream stream);

        /**
         * Releases the tensors of an operation that was launched and has failed; later, if another
         * GPU may still write to them.
         */
        default void releaseFailed(Runnable release) {
            release.run();
        }
    }

    public void release() {
        in.forEach(DeviceTensor::close);
        out.forEach(DeviceTensor::close);
    }
}
