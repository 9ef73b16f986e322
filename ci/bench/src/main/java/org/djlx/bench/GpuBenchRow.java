// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonPrimitive;
import java.util.List;
import java.util.Map;

/**
 * The results of an operation at one size. {@code operation} is its name in the API, and its path
 * if that is forced; {@code threads} are the ranks of one process. The error is the largest on any
 * rank, relative to the largest magnitude.
 *
 * @param mnk the unsharded sizes of a fused operator's matmul, (M, K) by (K, N); of an all-reduce +
 *     RMSNorm the rows and their length; null otherwise
 * @param columns for each contender, the times of a call on the slowest rank
 * @param replay for each contender, the median microseconds of an operation replayed from a CUDA
 *     graph, on the slowest rank
 * @param notes for each contender, the cause of missing or wrong results
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

    private static final Gson GSON =
            new GsonBuilder().serializeSpecialFloatingPointValues().create();

    /** Our operator, on the path that it chooses. */
    static final String OURS = "ours";

    /** A launch of an empty kernel, the unit of host times. */
    static final String BARE_LAUNCH = "bareLaunch";

    /** Our operator's fallback: the all-reduce, then the norm. */
    static final String OURS_APART = "oursApart";

    /** NCCL, for a fused operator with libtorch's matmul or norm. */
    static final String NCCL = "nccl";

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

    /**
     * Returns a row that has the larger of the two ranks' values in each field; NaN counts as the
     * largest.
     */
    GpuBenchRow slowest(GpuBenchRow other) {
        return plus(GSON.toJsonTree(other).getAsJsonObject());
    }

    /** Returns this row with the results of another program, JSON with fields of this record. */
    GpuBenchRow plus(JsonObject other) {
        return GSON.fromJson(larger(GSON.toJsonTree(this), other), GpuBenchRow.class);
    }

    /** Exchanges the rows of all ranks; returns the row of the slowest rank's times. */
    GpuBenchRow merged(Meeting meeting) {
        return meeting.exchange(GSON.toJson(this)).stream()
                .map(json -> GSON.fromJson(json, GpuBenchRow.class))
                .reduce(GpuBenchRow::slowest)
                .orElseThrow();
    }

    private static JsonElement larger(JsonElement a, JsonElement b) {
        if (a == null) {
            return b;
        }
        if (a instanceof JsonObject object) {
            b.getAsJsonObject()
                    .asMap()
                    .forEach((name, value) -> object.add(name, larger(object.get(name), value)));
        } else if (a instanceof JsonPrimitive number && number.isNumber()) {
            return Double.compare(a.getAsDouble(), b.getAsDouble()) < 0 ? b : a;
        }
        return a;
    }
}
