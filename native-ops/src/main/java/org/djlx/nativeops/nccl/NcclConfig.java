// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.nccl;

import com.sun.jna.Memory;

/**
 * The configuration of a communicator: members of NCCL's {@code ncclConfig_t}. NCCL chooses the
 * value of a null member.
 *
 * @param minCtas the minimum number of thread blocks for a collective
 * @param maxCtas the maximum number of thread blocks for a collective
 * @param cgaClusterSize the size of thread block clusters, 0 to 8
 * @param splitShare whether communicators created by a split share resources with their parent
 */
public record NcclConfig(
        Integer minCtas, Integer maxCtas, Integer cgaClusterSize, Boolean splitShare) {

    /** NCCL chooses everything. */
    public static final NcclConfig DEFAULT = new NcclConfig(null, null, null, null);

    private static final int UNDEFINED = Integer.MIN_VALUE;
    private static final int MAGIC = 0xcafebeef;
    // The struct of version 2.18. Its size tells NCCL that later members are missing.
    private static final int VERSION = 21800;
    private static final int BYTES = 48;
    // The most channels that NCCL has. NCCL compares minimum and maximum before it sets a default.
    private static final int MAX_CTAS = 64;

    /**
     * Returns the struct. Calls block, because blocking calls need no extra thread:
     *
     * <pre>
     *   0 long size | 8 int magic | 12 int version | 16 int blocking | 20 int cgaClusterSize
     *   24 int minCTAs | 28 int maxCTAs | 32 pointer netName | 40 int splitShare | 44 unused
     * </pre>
     */
    Memory write() {
        Memory struct = new Memory(BYTES);
        struct.setLong(0, BYTES);
        struct.setInt(8, MAGIC);
        struct.setInt(12, VERSION);
        struct.setInt(16, 1);
        struct.setInt(20, orUndefined(cgaClusterSize));
        struct.setInt(24, orUndefined(minCtas));
        boolean minimumOnly = minCtas != null && maxCtas == null;
        struct.setInt(28, minimumOnly ? Math.max(minCtas, MAX_CTAS) : orUndefined(maxCtas));
        struct.setLong(32, 0);
        struct.setInt(40, splitShare == null ? UNDEFINED : splitShare ? 1 : 0);
        struct.setInt(44, 0);
        return struct;
    }

    private static int orUndefined(Integer value) {
        return value == null ? UNDEFINED : value;
    }
}
