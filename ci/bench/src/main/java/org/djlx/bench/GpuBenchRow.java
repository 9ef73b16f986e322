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
 * An operation at one size.
 *
 * @param operation its name in the API
 * @param mnk the unsharded sizes of a fused operator's matmul, (M, K) by (K, N); of an all-reduce +
 *     RMSNorm the rows and their length; null otherwise
 * @param bytes the size of a collective's tensor; null otherwise
 * @param ranks the number of ranks
 * @param threads how many of them are threads of one process
 * @param gpus the number of GPUs that they share
 * @param error the largest error of a result on any rank, relative to the largest magnitude
 * @param allowedError what rounding allows
 * @param columns for each way to do it, called by the host, what a call costs the slowest rank
 * @param replay for each way to do it, replayed from a CUDA graph, the median microseconds of one
 *     operation on the slowest rank
 * @param notes what is missing, and why
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

    /** What the API does, by whatever path it takes. */
    static final String OURS = "ours";

    /** What the API does where it does not fuse: the all-reduce, and what is behind it. */
    static final String OURS_APART = "oursApart";

    /** NCCL and, for a fused operator, one matmul, or what libtorch has for it. */
    static final String NCCL = "nccl";

    /** NCCL on its symmetric windows. */
    static final String NCCL_WINDOWS = "ncclWindows";

    /** The matmul alone: the limit of a fused operator whose communication is hidden. */
    static final String MATMUL = "matmul";

    /** NCCL's collective alone: the limit of one whose matmul is. */
    static final String COMMUNICATION = "communication";

    /** PyTorch's fused operator. */
    static final String TORCH = "torch";

    /** PyTorch's matmul, in the run in which its fused operator was measured. */
    static final String TORCH_MATMUL = "torchMatmul";

    /** PyTorch's all-reduces on symmetric memory. */
    static final String TORCH_ONE_SHOT = "torchOneShot";

    static final String TORCH_TWO_SHOT = "torchTwoShot";

    /** NaN is not within what is allowed either. */
    boolean correct() {
        return error <= allowedError;
    }

    /** The size in words. */
    String size() {
        return mnk == null
                ? bytes + " B"
                : mnk.stream().map(String::valueOf).collect(Collectors.joining(", "));
    }

    /** What the slowest and the worst rank have shown; an error of NaN is the worst. */
    GpuBenchRow slowest(GpuBenchRow other) {
        return with(
                Math.max(error, other.error),
                merged(columns, other.columns, CallTimes::slowest),
                merged(replay, other.replay, Math::max),
                merged(notes, other.notes, (a, b) -> a));
    }

    /** The row with what another program has measured. */
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
