/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.bench;

/**
 * What calls of an operation cost a rank.
 *
 * @param gpuMicros the median time between one call's end on the GPU and the next one's; where the
 *     host is slower than the GPU, it is the host's
 * @param hostMicros the median time that a call takes the thread
 * @param firstHostMicros the same of the very first calls
 * @param firstHostMicrosSum how long the very first calls took the thread together
 * @param driverCalls how often the thread calls the CUDA driver for an operation
 * @param otherNativeCalls how often it calls libtorch, NCCL or cuBLASLt
 */
record CallTimes(
        double gpuMicros,
        double hostMicros,
        double firstHostMicros,
        double firstHostMicrosSum,
        double driverCalls,
        double otherNativeCalls) {

    /** The greater of each. */
    static CallTimes slowest(CallTimes a, CallTimes b) {
        return new CallTimes(
                Math.max(a.gpuMicros, b.gpuMicros),
                Math.max(a.hostMicros, b.hostMicros),
                Math.max(a.firstHostMicros, b.firstHostMicros),
                Math.max(a.firstHostMicrosSum, b.firstHostMicrosSum),
                Math.max(a.driverCalls, b.driverCalls),
                Math.max(a.otherNativeCalls, b.otherNativeCalls));
    }
}
