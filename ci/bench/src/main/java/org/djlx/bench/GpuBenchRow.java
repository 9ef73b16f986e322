/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.bench;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.BinaryOperator;
import java.util.stream.Collectors;

/**
 * The results of an operation at one size.
 *
 * @param operation its name in the API
 * @param mnk the unsharded sizes of a fused operator's matmul, (M, K) by (K, N); of an all-reduce +
 *     RMSNorm the rows and their length; null otherwise
 * @param bytes the size of a collective's tensor; null otherwise
 * @param ranks the number of ranks
 * @param threads the ranks that are threads of one process
 * @param gpus the number of GPUs of all ranks
 * @param error the largest error on any rank, relative to the largest magnitude
 * @param allowedError the error that rounding allows
 * @param columns the cost of a call by the host on the slowest rank, by contender
 * @param replay the median microseconds of an operation replayed from a CUDA graph on the slowest
 *     rank, by contender
 * @param notes the causes of missing or wrong results, by contender
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
        Map<String, CallTimes> columns,
        Map<String, Double> replay,
        Map<String, String> notes) {

    /** Our operator, on the path that it chooses. */
    static final String OURS = "ours";

    /** Our operator's fallback: the all-reduce, then the norm. */
    static final String OURS_APART = "oursApart";

    /** NCCL, for a fused operator with libtorch's matmul or norm. */
    static final String NCCL = "nccl";

    /** NCCL on its symmetric windows. */
    static final String NCCL_WINDOWS = "ncclWindows";

    /** The matmul alone: the limit if communication is hidden. */
    static final String MATMUL = "matmul";

    /** NCCL's collective alone: the limit if the matmul is hidden. */
    static final String COMMUNICATION = "communication";

    /** PyTorch's fused operator. */
    static final String TORCH = "torch";

    /** PyTorch's matmul, from the run of its fused operator. */
    static final String TORCH_MATMUL = "torchMatmul";

    /** PyTorch's all-reduces on symmetric memory. */
    static final String TORCH_ONE_SHOT = "torchOneShot";

    static final String TORCH_TWO_SHOT = "torchTwoShot";

    /** Returns whether the error is allowed; NaN is not. */
    boolean correct() {
        return error <= allowedError;
    }

    /** Returns the size in words. */
    String size() {
        return mnk == null
                ? bytes + " B"
                : mnk.stream().map(String::valueOf).collect(Collectors.joining(", "));
    }

    /** Returns the larger times and the larger error of two ranks; NaN is the largest error. */
    GpuBenchRow slowest(GpuBenchRow other) {
        return with(
                Math.max(error, other.error),
                merged(columns, other.columns, CallTimes::slowest),
                merged(replay, other.replay, Math::max),
                merged(notes, other.notes, (a, b) -> a));
    }

    /** Returns this row with the results of another program. */
    GpuBenchRow plus(
            Map<String, CallTimes> moreColumns,
            Map<String, Double> moreReplay,
            Map<String, String> moreNotes) {
        return with(
                error,
                merged(columns, moreColumns, CallTimes::slowest),
                merged(replay, moreReplay, Math::max),
                merged(notes, moreNotes, (a, b) -> a));
    }

    private GpuBenchRow with(
            double newError,
            Map<String, CallTimes> newColumns,
            Map<String, Double> newReplay,
            Map<String, String> newNotes) {
        return new GpuBenchRow(
                operation,
                mnk,
                bytes,
                ranks,
                threads,
                gpus,
                newError,
                allowedError,
                newColumns,
                newReplay,
                newNotes);
    }

    private static <T> Map<String, T> merged(
            Map<String, T> a, Map<String, T> b, BinaryOperator<T> both) {
        Map<String, T> all = new LinkedHashMap<>(a);
        b.forEach((name, value) -> all.merge(name, value, both));
        return all;
    }
}
