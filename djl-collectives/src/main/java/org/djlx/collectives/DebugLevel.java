// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import java.util.Locale;
import java.util.Map;
import org.djlx.nativeops.host.Required;

/**
 * How closely groups watch the calls of a program; the counterpart of {@code
 * torch.distributed.DebugLevel}. The environment variable {@value #VARIABLE} sets it for all groups
 * of a process, {@code optDebug} for one group. Must be the same on all ranks of a group.
 */
public enum DebugLevel {

    /** Only checks that cost no time. */
    OFF,

    /** Logs the creation and the end of each group. */
    INFO,

    /**
     * As {@link #INFO}; for debugging, because each call waits for the other ranks and the GPU:
     *
     * <ul>
     *   <li>{@code nccl} and {@code cuda_p2p} compare each call with the other ranks' calls before
     *       it runs. A mismatch fails on all ranks, and the group stays usable; a timeout names the
     *       missing ranks. {@code shm} and {@code mpi} always do so.
     *   <li>{@code nccl} compares through the store, and rejects a call that is recorded into a
     *       CUDA graph immediately. Ranks that do not record the call wait for the recording rank
     *       until the timeout. {@code cuda_p2p} compares recorded calls.
     *   <li>An input of type float16, bfloat16, float32 or float64 that contains NaN breaks the
     *       group; the error on each rank names the rank, the call and the place. Calls that are
     *       recorded into a CUDA graph, and fused operators' own transfers, are not checked.
     * </ul>
     */
    DETAIL;

    /** The environment variable, which PyTorch reads, too. */
    public static final String VARIABLE = "TORCH_DISTRIBUTED_DEBUG";

    /**
     * {@return the level of an environment; {@link #OFF} if the variable is not set}
     *
     * @throws IllegalArgumentException if the variable is none of the levels
     */
    public static DebugLevel of(Map<String, String> environment) {
        String value =
                Required.argument("DebugLevel: environment", environment)
                        .getOrDefault(VARIABLE, "");
        if (value.isBlank()) {
            return OFF;
        }
        try {
            return valueOf(value.trim().toUpperCase(Locale.ROOT));
        } catch (IllegalArgumentException e) {
            throw new IllegalArgumentException(
                    "the environment variable %s is \"%s\"; set it to OFF, INFO or DETAIL"
                            .formatted(VARIABLE, value),
                    e);
        }
    }
}
