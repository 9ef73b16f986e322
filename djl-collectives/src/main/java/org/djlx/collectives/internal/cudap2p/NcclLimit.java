// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import com.google.gson.Gson;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.function.LongToDoubleFunction;
import org.djlx.collectives.spi.GroupContext;

/**
 * Measures the largest all-reduce that kernels run; larger ones are faster with NCCL, for example
 * because NCCL reduces within NVSwitches (NVLS). Times both for 1 MiB, 4 MiB and so on. NCCL counts
 * as faster if it takes less than 95 % of the kernels' time.
 */
final class NcclLimit {

    private static final Gson GSON = new Gson();
    private static final long MIN_BYTES = 1 << 20;
    private static final int STEP = 4; // factor from one size to the next
    private static final double FASTER = 0.95; // of the kernels' time

    private NcclLimit() {}

    /**
     * Times both on every rank and compares the times of the slowest rank. All ranks call this,
     * with the same {@code maxBytes}.
     *
     * @param maxBytes the largest size to time, in bytes
     * @param kernels returns the time of the kernels' all-reduce of a size in bytes
     * @param nccl returns the time of NCCL's all-reduce of a size in bytes
     * @return the limit in bytes, the same on all ranks; {@link Long#MAX_VALUE} if NCCL is faster
     *     for no size
     */
    static long measure(
            GroupContext context,
            long maxBytes,
            LongToDoubleFunction kernels,
            LongToDoubleFunction nccl) {
        List<Double> times = new ArrayList<>();
        for (long size = MIN_BYTES; size <= maxBytes; size *= STEP) {
            times.add(kernels.applyAsDouble(size));
            times.add(nccl.applyAsDouble(size));
        }
        double[] slowest = new double[times.size()];
        byte[] own = GSON.toJson(times).getBytes(StandardCharsets.UTF_8);
        for (byte[] json : context.exchange("p2p-nccl-times", own)) {
            double[] ofRank =
                    GSON.fromJson(new String(json, StandardCharsets.UTF_8), double[].class);
            Arrays.setAll(slowest, i -> Math.max(slowest[i], ofRank[i]));
        }
        return limit(slowest);
    }

    /**
     * Returns half of the smallest size for which NCCL is faster: midway, as a ratio, between this
     * size and the one before. Returns {@link Long#MAX_VALUE} if NCCL is faster for no size.
     *
     * @param times for each size the time of the kernels, followed by the time of NCCL
     */
    static long limit(double[] times) {
        long size = MIN_BYTES;
        for (int i = 0; i < times.length; i += 2, size *= STEP) {
            if (times[i + 1] < FASTER * times[i]) {
                return size / 2;
            }
        }
        return Long.MAX_VALUE;
    }
}
