// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.nccl;

import com.sun.jna.Memory;

/**
 * The configuration of a communicator: members of NCCL's {@code ncclConfig_t}. NCCL chooses the
 * others, or reads them from its environment variables, such as {@code NCCL_MAX_CTAS}.
 *
 * @param splitShare whether communicators created by a split share resources with their parent;
 *     null if NCCL chooses
 */
public record NcclConfig(Boolean splitShare) {

    /** NCCL chooses everything. */
    public static final NcclConfig DEFAULT = new NcclConfig(null);

    private static final int UNDEFINED = Integer.MIN_VALUE;
    private static final int MAGIC = 0xcafebeef;
    // The struct of version 2.18. Its size tells NCCL that later members are missing.
    private static final int VERSION = 21800;
    private static final int BYTES = 48;

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
        struct.setInt(20, UNDEFINED);
        struct.setInt(24, UNDEFINED);
        struct.setInt(28, UNDEFINED);
        struct.setLong(32, 0);
        struct.setInt(40, splitShare == null ? UNDEFINED : splitShare ? 1 : 0);
        struct.setInt(44, 0);
        return struct;
    }
}
