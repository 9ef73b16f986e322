/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.bench;

/**
 * What calls of an operation cost a rank. What was not measured is null.
 *
 * @param gpuMicros the median time between one call's end on the GPU and the next one's; where the
 *     host is slower than the GPU, it is the host's
 * @param hostMicros the median time that a call takes the thread
 * @param aloneHostMicros the same while the other ranks call nothing; null on CPUs, where they take
 *     part
 * @param firstHostMicros the median time that one of the very first calls takes it
 * @param firstHostMicrosSum how long the very first calls took the thread together
 * @param driverCalls how often the thread calls the CUDA driver for an operation
 * @param otherNativeCalls how often it calls libtorch, NCCL or cuBLASLt
 */
record CallTimes(
        Double gpuMicros,
        Double hostMicros,
        Double aloneHostMicros,
        Double firstHostMicros,
        Double firstHostMicrosSum,
        Double driverCalls,
        Double otherNativeCalls) {

    /** The greater of each. */
    static CallTimes slowest(CallTimes a, CallTimes b) {
        return new CallTimes(
                greater(a.gpuMicros, b.gpuMicros),
                greater(a.hostMicros, b.hostMicros),
                greater(a.aloneHostMicros, b.aloneHostMicros),
                greater(a.firstHostMicros, b.firstHostMicros),
                greater(a.firstHostMicrosSum, b.firstHostMicrosSum),
                greater(a.driverCalls, b.driverCalls),
                greater(a.otherNativeCalls, b.otherNativeCalls));
    }

    private static Double greater(Double a, Double b) {
        return a == null ? b : b == null ? a : Double.valueOf(Math.max(a, b));
    }
}
