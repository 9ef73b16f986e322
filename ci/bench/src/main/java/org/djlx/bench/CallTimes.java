/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.bench;

/**
 * The cost of a call of an operation for a rank; null for what was not measured.
 *
 * @param gpuMicros the median time between the ends of two calls on the GPU; the host's time if the
 *     host is slower
 * @param hostMicros the median time of a call on the host's thread
 * @param aloneHostMicros the same while the other ranks are idle; null on CPUs, where calls need
 *     all ranks
 * @param firstHostMicros the median of the first calls on the host's thread
 * @param firstHostMicrosSum the sum of the first calls on the host's thread
 * @param driverCalls the CUDA driver calls of an operation
 * @param otherNativeCalls its calls of libtorch, NCCL and cuBLASLt
 */
record CallTimes(
        Double gpuMicros,
        Double hostMicros,
        Double aloneHostMicros,
        Double firstHostMicros,
        Double firstHostMicrosSum,
        Double driverCalls,
        Double otherNativeCalls) {

    /** Returns the larger of each value. */
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
