// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import ai.djl.Device;
import java.time.Duration;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.nativeops.host.Required;
import org.djlx.nativeops.nccl.NcclConfig;
import org.djlx.nativeops.nccl.NcclConfig.Member;

/**
 * Options of the {@code nccl} backend. All options except the devices must be the same on all
 * ranks.
 */
public final class NcclOptions extends BackendOptions {

    /** The environment variable that is the default of {@link Builder#optIntraNodeComm}. */
    public static final String INTRA_NODE_COMM = "ENABLE_INTRA_NODE_COMM";

    private final Builder values; // never changed

    private NcclOptions(Builder builder) {
        super(builder, DEFAULTS);
        values = builder.copy();
        check(values);
    }

    /** {@return these options, with those that all backends have from other options} */
    NcclOptions withCommon(BackendOptions options) {
        return values.copy().optCommon(options).build();
    }

    private static void check(Builder builder) {
        for (Device device : builder.devices) {
            if (!device.isGpu()) {
                throw new IllegalArgumentException("NCCL needs GPU devices, but got " + device);
            }
        }
        if (Set.copyOf(builder.devices).size() < builder.devices.size()) {
            throw new IllegalArgumentException(
                    "devices must be distinct, one GPU per rank, but are " + builder.devices);
        }
    }

    /** Reads the environment variable as c10d does. */
    static boolean isIntraNodeComm(Map<String, String> environment) {
        String value = environment.getOrDefault(INTRA_NODE_COMM, "0").toLowerCase(Locale.ROOT);
        if (Set.of("y", "yes", "1", "t", "true").contains(value)) {
            return true;
        }
        if (Set.of("n", "no", "0", "f", "false").contains(value)) {
            return false;
        }
        throw new IllegalArgumentException(
                "the environment variable %s is \"%s\"; set it to 1 or 0"
                        .formatted(INTRA_NODE_COMM, value));
    }

    /** {@return whether operations run on a high-priority stream} */
    public boolean isHighPriorityStream() {
        return values.highPriorityStream;
    }

    /** {@return whether waiting for a work blocks the host} */
    public boolean isBlockingWait() {
        return values.blockingWait;
    }

    /** {@return whether {@code nccl} groups use the GPU-to-GPU all-reduces of {@code cuda_p2p}} */
    public boolean isIntraNodeComm() {
        return values.intraNodeComm;
    }

    /** {@return whether each pair of ranks has communicators for its messages} */
    public boolean isPairCommunicators() {
        return values.pairCommunicators;
    }

    /** {@return the NCCL configuration of communicators} */
    public NcclConfig config() {
        return values.config;
    }

    /**
     * {@return the GPUs set with {@link Builder#optDevices}: the GPU of this rank, the GPUs of all
     * ranks in rank order, or an empty list}
     */
    public List<Device> devices() {
        return values.devices;
    }

    /** {@return the builder, with the defaults} */
    public static Builder builder() {
        return new Builder();
    }

    /** Builds {@link NcclOptions}. */
    public static final class Builder extends BackendOptions.Builder<Builder> {

        private boolean highPriorityStream;
        private boolean blockingWait = true;
        private boolean intraNodeComm = isIntraNodeComm(System.getenv());
        private boolean pairCommunicators;
        private NcclConfig config = NcclConfig.DEFAULT;
        private List<Device> devices = List.of();

        private Builder() {}

        /**
         * Sets how long an operation may take. After the timeout the group is broken: running
         * operations are aborted on the GPU, then their works fail. This can take 10 s more,
         * because NCCL frees memory and CUDA may wait for other groups' operations. If the GPU has
         * not stopped by then, the works fail anyway, and the memory of their tensors is kept until
         * the process ends, because the GPU may still write to it.
         *
         * @param timeout the timeout; 30 minutes unless set
         */
        @Override
        public Builder optTimeout(Duration timeout) {
            return super.optTimeout(timeout);
        }

        /** Sets whether operations run on a high-priority stream; false unless set. */
        public Builder optHighPriorityStream(boolean high) {
            this.highPriorityStream = high;
            return this;
        }

        /**
         * Sets whether {@link Work#await()} blocks the host until the operation has ended.
         * Otherwise it blocks only the calling thread's current stream, as {@link
         * Work#blockCurrentStream()} does. Blocking only the stream is c10d's default; a failure
         * then shows only in later calls. As in c10d, a barrier always blocks the host.
         *
         * @param blocking true to block the host; true unless set
         */
        public Builder optBlockingWait(boolean blocking) {
            this.blockingWait = blocking;
            return this;
        }

        /**
         * Sets whether groups of {@code nccl} use the GPU-to-GPU all-reduces of {@code cuda_p2p}
         * where the GPUs of a host allow it; the counterpart of c10d's intra-node communication.
         * The group is then a {@code cuda_p2p} group. Must be the same on all ranks.
         *
         * @param intraNode true to use them; unless set, the environment variable {@value
         *     #INTRA_NODE_COMM} decides, as in c10d
         */
        public Builder optIntraNodeComm(boolean intraNode) {
            this.intraNodeComm = intraNode;
            return this;
        }

        /**
         * Sets whether each pair of ranks has NCCL communicators for its messages (send, recv,
         * batchIsendIrecv), one for each direction, created by the first message in it. Messages
         * then wait neither for collectives nor for messages of other pairs or of the other
         * direction.
         *
         * <p>Unless set, and if {@linkplain #optDevices all ranks name their GPUs}, messages run on
         * the group's communicator, with a stream for each pair, as in c10d with eager
         * initialization:
         *
         * <ul>
         *   <li>Operations of a rank run in the order of its calls, messages included. Two ranks
         *       must call collectives and the messages between them in the same order, and ranks
         *       must not wait for each other in a circle. If two ranks both send first and then
         *       receive, they wait until the timeout.
         *   <li>The messages of one {@link ProcessGroup#batchIsendIrecv} run at the same time, in
         *       any order. In an {@link NcclBatch}, messages come after all collectives.
         *   <li>A message that times out breaks the whole group.
         * </ul>
         *
         * @param pairs true for pair communicators; false unless set. Groups without named GPUs
         *     always have pair communicators
         */
        public Builder optPairCommunicators(boolean pairs) {
            this.pairCommunicators = pairs;
            return this;
        }

        /**
         * Sets whether sub-groups share NCCL's resources with their parent ({@code splitShare});
         * NCCL's choice unless set.
         */
        public Builder optSplitShare(boolean share) {
            return with(Member.SPLIT_SHARE, share ? 1 : 0);
        }

        /**
         * Sets the least number of blocks (CTAs) of NCCL's kernels, from 1 to the maximum, as
         * {@code NCCL_MIN_CTAS}; NCCL's choice unless set. More blocks move more bytes in a time,
         * and take SMs from computations that run beside them.
         */
        public Builder optMinCtas(int ctas) {
            return with(Member.MIN_CTAS, ctas);
        }

        /**
         * Sets the largest number of blocks (CTAs) of NCCL's kernels, at least 1, as {@code
         * NCCL_MAX_CTAS}; NCCL's choice unless set.
         */
        public Builder optMaxCtas(int ctas) {
            return with(Member.MAX_CTAS, ctas);
        }

        /**
         * Sets how many blocks of NCCL's kernels form a cluster, from 0 to 8, as {@code
         * NCCL_CGA_CLUSTER_SIZE}; NCCL's choice unless set.
         */
        public Builder optCgaClusterSize(int blocks) {
            return with(Member.CGA_CLUSTER_SIZE, blocks);
        }

        /**
         * Sets the class of the network's packets, not negative, as {@code NCCL_IB_TC}; NCCL's
         * choice unless set. Needs NCCL 2.25.
         */
        public Builder optTrafficClass(int trafficClass) {
            return with(Member.TRAFFIC_CLASS, trafficClass);
        }

        /**
         * Sets the network between hosts, such as {@code "IB"} or {@code "Socket"}, as {@code
         * NCCL_NET}; NCCL's choice unless set.
         */
        public Builder optNetName(String name) {
            config = config.withNetName(Required.argument("optNetName: name", name));
            return this;
        }

        private Builder with(Member member, int number) {
            config = config.with(member, number);
            return this;
        }

        /**
         * Sets the GPU of this rank, or the GPUs of all ranks in rank order. The communicator of
         * several ranks is then created with the group, and carries the messages, too, unless
         * {@link #optPairCommunicators} is set.
         *
         * <p>Unless set, the communicator is created with the first operation, on GPU {@code
         * LOCAL_RANK} (environment variable) or, if that is not set, on the GPU whose index is the
         * rank.
         *
         * @param devices one GPU, or one per rank; all distinct
         */
        public Builder optDevices(Device... devices) {
            Required.argument("optDevices: devices", devices);
            for (Device device : devices) {
                Required.argument("optDevices: a device", device);
            }
            this.devices = List.of(devices);
            return this;
        }

        /** {@return the options} */
        public NcclOptions build() {
            return new NcclOptions(this);
        }
    }
}
