/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.bench;

import java.util.List;
import java.util.Map;

/**
 * An operation at one size.
 *
 * @param operation its name in the API
 * @param mnk the unsharded sizes of a fused operator's matmul, (M, K) by (K, N); null otherwise
 * @param bytes the size of a collective's tensor; null otherwise
 * @param ranks the number of ranks
 * @param threads how many of them are threads of one process
 * @param gpus the number of GPUs that they share
 * @param error the largest error of a result on any rank, relative to the largest magnitude
 * @param allowedError what rounding allows
 * @param columns for each way to do it what a call costs the slowest rank
 */
record GpuBenchRow(
        String operation,
        List<Integer> mnk,
        Long bytes,
        int ranks,
        int threads,
        int gpus,
        double error,
        double allowedError,
        Map<String, CallTimes> columns) {

    static final String OURS = "ours";
    static final String NCCL = "nccl";
    static final String MATMUL = "matmul";

    /** NaN is not within what is allowed either. */
    boolean correct() {
        return error <= allowedError;
    }

    /** The size in words. */
    String size() {
        return mnk == null ? bytes + " B" : mnk.get(0) + ", " + mnk.get(1) + ", " + mnk.get(2);
    }
}
