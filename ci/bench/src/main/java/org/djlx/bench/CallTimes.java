// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

/**
 * The cost of a call of an operation on a rank; a value is null if it was not measured.
 *
 * @param gpuMicros the median time between the ends of two calls on the GPU; the host's time if the
 *     host is slower
 * @param hostMicros the median time of a call on the host's thread
 * @param aloneHostMicros the median time of a call while the other ranks are idle; null on CPUs,
 *     where a call needs all ranks
 * @param firstCallMicros the first call on the host's thread, which may compile kernels
 * @param driverCalls the CUDA driver calls of an operation; other native calls are those of
 *     libtorch, NCCL and cuBLASLt
 */
record CallTimes(
        Double gpuMicros,
        Double hostMicros,
        Double aloneHostMicros,
        Double firstHostMicros,
        Double firstHostMicrosSum,
        Double firstCallMicros,
        Double nextCallsMaxMicros,
        Double driverCalls,
        Double otherNativeCalls) {}
