/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.nccl;

import ai.djl.Device;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import org.djlx.collectives.BackendOptions;
import org.djlx.collectives.GroupContext;
import org.djlx.nativeops.NcclConfig;

/** Options of the {@code nccl} backend. All but the devices must be the same on all ranks. */
public final class NcclOptions extends BackendOptions {

    private final boolean highPriorityStream;
    private final NcclConfig config;
    private final List<Device> devices;

    private NcclOptions(Builder builder) {
        super(builder.timeout);
        highPriorityStream = builder.highPriorityStream;
        config =
                new NcclConfig(
                        builder.minCtas,
                        builder.maxCtas,
                        builder.cgaClusterSize,
                        builder.splitShare);
        devices = List.copyOf(builder.devices);
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
     * Returns how NCCL is to work.
     *
     * @return the configuration of communicators
     */
    public NcclConfig config() {
        return config;
    }

    /**
     * Returns the device of a rank, if it was given: that of the parent group, or one of these.
     *
     * @param context the group and the rank
     * @return the device
     */
    Optional<Device> device(GroupContext context) {
        if (context.device() != null || devices.isEmpty()) {
            return Optional.ofNullable(context.device());
        }
        int rank = context.rank();
        if (devices.size() > 1 && rank >= devices.size()) {
            throw new IllegalArgumentException(
                    "there are " + devices.size() + " devices, none of them for rank " + rank);
        }
        return Optional.of(devices.get(devices.size() == 1 ? 0 : rank));
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
        private boolean highPriorityStream;
        private Integer minCtas;
        private Integer maxCtas;
        private Integer cgaClusterSize;
        private Boolean splitShare;
        private List<Device> devices = List.of();

        private Builder() {}

        /**
         * Sets how long an operation may take.
         *
         * @param timeout the timeout; 30 minutes unless set
         * @return this builder
         */
        public Builder optTimeout(Duration timeout) {
            this.timeout = timeout;
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
         * Sets the least number of thread blocks for a collective.
         *
         * @param count the number; NCCL's choice unless set
         * @return this builder
         */
        public Builder optMinCtas(int count) {
            this.minCtas = count;
            return this;
        }

        /**
         * Sets the greatest number of thread blocks for a collective.
         *
         * @param count the number; NCCL's choice unless set
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
         * environment variable {@code LOCAL_RANK} names, or that has the rank's number.
         *
         * @param devices the GPUs
         * @return this builder
         */
        public Builder optDevices(Device... devices) {
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
