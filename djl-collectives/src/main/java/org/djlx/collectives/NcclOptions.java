/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives;

import ai.djl.Device;
import java.time.Duration;
import java.util.List;
import java.util.Set;
import org.djlx.collectives.internal.host.Required;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.nativeops.nccl.NcclConfig;

/** Options of the {@code nccl} backend. All but the devices must be the same on all ranks. */
public final class NcclOptions extends BackendOptions {

    private static final int MAX_CTAS = 32; // what NCCL takes
    private static final int MAX_CLUSTER = 8;

    private final boolean highPriorityStream;
    private final boolean blockingWait;
    private final boolean verify;
    private final NcclConfig config;
    private final List<Device> devices;

    private NcclOptions(Builder builder) {
        super(builder.timeout, builder.warnAfter);
        highPriorityStream = builder.highPriorityStream;
        blockingWait = builder.blockingWait;
        verify = builder.verify;
        check(builder);
        config =
                new NcclConfig(
                        builder.minCtas,
                        builder.maxCtas,
                        builder.cgaClusterSize,
                        builder.splitShare);
        devices = List.copyOf(builder.devices);
    }

    private NcclOptions(NcclOptions other, Duration timeout) {
        super(timeout, other.warnAfter());
        highPriorityStream = other.highPriorityStream;
        blockingWait = other.blockingWait;
        verify = other.verify;
        config = other.config;
        devices = other.devices;
    }

    /**
     * Returns these options with another timeout.
     *
     * @param timeout how long an operation may take
     * @return the options
     */
    public NcclOptions withTimeout(Duration timeout) {
        return new NcclOptions(this, timeout);
    }

    private static void check(Builder builder) {
        checkRange("minCtas", builder.minCtas, 1, MAX_CTAS);
        checkRange("maxCtas", builder.maxCtas, 1, MAX_CTAS);
        checkRange("cgaClusterSize", builder.cgaClusterSize, 0, MAX_CLUSTER);
        if (builder.minCtas != null
                && builder.maxCtas != null
                && builder.minCtas > builder.maxCtas) {
            throw new IllegalArgumentException(
                    "minCtas is "
                            + builder.minCtas
                            + " and must not be more than maxCtas, which is "
                            + builder.maxCtas);
        }
        for (Device device : builder.devices) {
            if (!device.isGpu()) {
                throw new IllegalArgumentException("NCCL needs GPUs, not " + device);
            }
        }
        if (Set.copyOf(builder.devices).size() < builder.devices.size()) {
            throw new IllegalArgumentException(
                    "each rank needs a GPU of its own: " + builder.devices);
        }
    }

    private static void checkRange(String option, Integer value, int least, int greatest) {
        if (value != null && (value < least || value > greatest)) {
            throw new IllegalArgumentException(
                    option + " must be from " + least + " to " + greatest + ", not " + value);
        }
    }

    /**
     * Tells whether operations run on a stream of high priority.
     *
     * @return true if they do
     */
    public boolean isHighPriorityStream() {
        return highPriorityStream;
    }

    /**
     * Tells whether waiting for a work blocks the host.
     *
     * @return true if it does
     */
    public boolean isBlockingWait() {
        return blockingWait;
    }

    /**
     * Tells whether calls are compared across ranks before they run.
     *
     * @return true if they are
     */
    public boolean isVerify() {
        return verify;
    }

    /**
     * Returns how NCCL is to work.
     *
     * @return the configuration of communicators
     */
    public NcclConfig config() {
        return config;
    }

    /**
     * Returns the GPUs that were given.
     *
     * @return one for this rank, one for each rank in their order, or none
     */
    public List<Device> devices() {
        return devices;
    }

    /**
     * Returns a builder.
     *
     * @return the builder, with the defaults
     */
    public static Builder builder() {
        return new Builder();
    }

    /** Builds {@link NcclOptions}. */
    public static final class Builder {

        private Duration timeout = DEFAULT_TIMEOUT;
        private Duration warnAfter = DEFAULT_WARN_AFTER;
        private boolean highPriorityStream;
        private boolean blockingWait = true;
        private boolean verify;
        private Integer minCtas;
        private Integer maxCtas;
        private Integer cgaClusterSize;
        private Boolean splitShare;
        private List<Device> devices = List.of();

        private Builder() {}

        /**
         * Sets how long an operation may take. Then the group breaks, and what is under way is
         * ended on the GPU before works fail, which may take 10 seconds more: ending it frees
         * memory, for which CUDA may wait for what other groups have under way. If the GPU has not
         * stopped by then, works fail all the same, and the memory of their tensors is kept until
         * the process ends, as the GPU may still write there.
         *
         * @param timeout the timeout; 30 minutes unless set
         * @return this builder
         */
        public Builder optTimeout(Duration timeout) {
            this.timeout = Required.argument("optTimeout: timeout", timeout);
            return this;
        }

        /**
         * Sets after how long a wait the log warns of an operation that waits for other ranks.
         *
         * @param warnAfter the time; 60 seconds unless set
         * @return this builder
         * @see BackendOptions#warnAfter
         */
        public Builder optWarnAfter(Duration warnAfter) {
            this.warnAfter = Required.argument("optWarnAfter: warnAfter", warnAfter);
            return this;
        }

        /**
         * Sets whether operations run on a stream of high priority.
         *
         * @param high true if they do; false unless set
         * @return this builder
         */
        public Builder optHighPriorityStream(boolean high) {
            this.highPriorityStream = high;
            return this;
        }

        /**
         * Sets what {@link org.djlx.collectives.Work#await()} does: block the host until the
         * operation has ended, or only the calling thread's current stream, as {@link
         * org.djlx.collectives.Work#blockCurrentStream()} does. The latter is c10d's default, and
         * an operation that fails later then shows in later calls. A barrier always blocks the
         * host, as in c10d.
         *
         * @param blocking true to block the host; true unless set
         * @return this builder
         */
        public Builder optBlockingWait(boolean blocking) {
            this.blockingWait = blocking;
            return this;
        }

        /**
         * Sets whether each call is compared with those of the other ranks before it runs, through
         * the store: calls that do not fit fail on all ranks, and a timeout names who is missing.
         * For finding errors: a call then costs the host a round trip to the store. The counterpart
         * of c10d's {@code TORCH_DISTRIBUTED_DEBUG=DETAIL}. A call that is recorded into a CUDA
         * graph, which {@code nccl} refuses at once, is not compared: ranks that do not record it
         * wait for its rank until the timeout. {@code cuda_p2p} compares that as well.
         *
         * @param compare true to compare; false unless set
         * @return this builder
         */
        public Builder optVerify(boolean compare) {
            this.verify = compare;
            return this;
        }

        /**
         * Sets the least number of thread blocks for a collective.
         *
         * @param count the number, 1 to 32; NCCL's choice unless set
         * @return this builder
         */
        public Builder optMinCtas(int count) {
            this.minCtas = count;
            return this;
        }

        /**
         * Sets the greatest number of thread blocks for a collective.
         *
         * @param count the number, 1 to 32; NCCL's choice unless set
         * @return this builder
         */
        public Builder optMaxCtas(int count) {
            this.maxCtas = count;
            return this;
        }

        /**
         * Sets the size of the clusters of thread blocks.
         *
         * @param size the size, 0 to 8; NCCL's choice unless set
         * @return this builder
         */
        public Builder optCgaClusterSize(int size) {
            this.cgaClusterSize = size;
            return this;
        }

        /**
         * Sets whether groups that are split off share NCCL's resources with their parent.
         *
         * @param share true if they do; NCCL's choice unless set
         * @return this builder
         */
        public Builder optSplitShare(boolean share) {
            this.splitShare = share;
            return this;
        }

        /**
         * Sets the GPU of this rank, or those of all ranks in their order. The communicator is then
         * created with the group; otherwise with its first operation, on the GPU that the
         * environment variable {@code LOCAL_RANK} of this rank's process names, or that has the
         * rank's number.
         *
         * @param devices the GPUs
         * @return this builder
         */
        public Builder optDevices(Device... devices) {
            Required.argument("optDevices: devices", devices);
            for (Device device : devices) {
                Required.argument("optDevices: a device", device);
            }
            this.devices = List.of(devices);
            return this;
        }

        /**
         * Builds the options.
         *
         * @return the options
         */
        public NcclOptions build() {
            return new NcclOptions(this);
        }
    }
}
