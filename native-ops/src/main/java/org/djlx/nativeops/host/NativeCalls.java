// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.host;

/**
 * Counts of a thread's native calls, of the CUDA driver and of libtorch, cuBLASLt and NCCL, to
 * measure the host overhead of operations.
 */
public record NativeCalls(long driver, long other) {

    /** {@return the counts of the calling thread since its start} */
    public static NativeCalls ofThread() {
        CallingThread thread = CallingThread.get();
        return new NativeCalls(thread.driverCalls, thread.otherCalls);
    }

    /** Counts a call of the calling thread to a library other than the driver. */
    public static void countOther() {
        CallingThread.get().otherCalls++;
    }
}
