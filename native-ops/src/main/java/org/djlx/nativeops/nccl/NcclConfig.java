// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.nccl;

import com.sun.jna.Memory;
import com.sun.jna.Pointer;
import java.nio.charset.StandardCharsets;
import java.util.EnumMap;
import java.util.Map;

/**
 * The configuration of a communicator: members of NCCL's {@code ncclConfig_t}. NCCL chooses those
 * that are not set, or reads them from its environment variables, such as {@code NCCL_MAX_CTAS}.
 *
 * @param numbers the numbers that are set
 * @param netName the network to use, such as {@code "IB"} or {@code "Socket"}; empty if NCCL
 *     chooses
 */
public record NcclConfig(Map<Member, Integer> numbers, String netName) {

    /** A number of the configuration. */
    public enum Member {
        /** Blocks of a cluster that is launched together, from 0 to 8. */
        CGA_CLUSTER_SIZE(20, 21700, 0, 8),
        /** The least number of blocks (CTAs) of a kernel. */
        MIN_CTAS(24, 21700, 1, Integer.MAX_VALUE),
        /** The largest number of blocks (CTAs) of a kernel. */
        MAX_CTAS(28, 21700, 1, Integer.MAX_VALUE),
        /** 1 if communicators created by a split share resources with their parent, 0 if not. */
        SPLIT_SHARE(40, 21800, 0, 1),
        /** The class of the network's packets. */
        TRAFFIC_CLASS(44, 22500, 0, Integer.MAX_VALUE);

        private final int offset;
        private final int since; // the version of NCCL
        private final int min;
        private final int max;

        Member(int offset, int since, int min, int max) {
            this.offset = offset;
            this.since = since;
            this.min = min;
            this.max = max;
        }
    }

    /** NCCL chooses everything. */
    public static final NcclConfig DEFAULT = new NcclConfig(Map.of(), "");

    private static final int UNDEFINED = Integer.MIN_VALUE;
    private static final int MAGIC = 0xcafebeef;
    private static final int VERSION = 21800; // of the struct, unless a newer member is set
    private static final int BYTES = 48; // tells NCCL that later members are missing

    /**
     * Creates a configuration.
     *
     * @throws IllegalArgumentException if a number is out of its range, or the least number of
     *     blocks is above the largest
     */
    public NcclConfig {
        numbers = Map.copyOf(numbers);
        numbers.forEach(
                (member, number) -> {
                    if (number < member.min || number > member.max) {
                        throw new IllegalArgumentException(
                                "NCCL's %s must be from %d to %d, but is %d"
                                        .formatted(member, member.min, member.max, number));
                    }
                });
        int min = numbers.getOrDefault(Member.MIN_CTAS, 1);
        int max = numbers.getOrDefault(Member.MAX_CTAS, Integer.MAX_VALUE);
        if (min > max) {
            throw new IllegalArgumentException(
                    "NCCL's MIN_CTAS is %d, above MAX_CTAS, which is %d".formatted(min, max));
        }
        if (netName.indexOf('\0') >= 0) {
            throw new IllegalArgumentException("the name of NCCL's network has a character 0");
        }
    }

    /** {@return whether communicators created by a split share resources with their parent} */
    public boolean isShared() {
        return numbers.getOrDefault(Member.SPLIT_SHARE, 0) == 1;
    }

    /** {@return this configuration with a number} */
    public NcclConfig with(Member member, int number) {
        Map<Member, Integer> more = new EnumMap<>(Member.class);
        more.putAll(numbers);
        more.put(member, number);
        return new NcclConfig(more, netName);
    }

    /** {@return this configuration with a network} */
    public NcclConfig withNetName(String name) {
        return new NcclConfig(numbers, name);
    }

    /**
     * Returns the struct, with the name of the network behind it. Calls block, because blocking
     * calls need no extra thread:
     *
     * <pre>
     *   0 long size | 8 int magic | 12 int version | 16 int blocking | 32 pointer netName
     * </pre>
     *
     * @param library the version of NCCL, such as 22809
     * @throws UnsupportedOperationException if a member is newer than the library
     */
    Memory write(int library) {
        byte[] name = netName.getBytes(StandardCharsets.UTF_8);
        Memory struct = new Memory(BYTES + name.length + 1);
        struct.clear();
        int version = VERSION;
        for (Member member : Member.values()) {
            struct.setInt(member.offset, numbers.getOrDefault(member, UNDEFINED));
            if (numbers.containsKey(member)) {
                version = Math.max(version, member.since);
                if (member.since > library) {
                    throw new UnsupportedOperationException(
                            "%s needs NCCL %s, and this is %s; leave it out"
                                    .formatted(member, text(member.since), text(library)));
                }
            }
        }
        struct.setLong(0, BYTES);
        struct.setInt(8, MAGIC);
        struct.setInt(12, version);
        struct.setInt(16, 1);
        struct.write(BYTES, name, 0, name.length);
        struct.setPointer(32, netName.isEmpty() ? Pointer.NULL : struct.share(BYTES));
        return struct;
    }

    private static String text(int version) {
        return "%d.%d.%d".formatted(version / 10000, version / 100 % 100, version % 100);
    }
}
