/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives;

import java.time.Duration;
import org.djlx.collectives.internal.host.Required;
import org.djlx.collectives.spi.BackendOptions;

/** Options of the {@code shm} backend. All ranks of a group must be given the same. */
public final class ShmOptions extends BackendOptions {

    /** The size of a rank's P2P buffer unless told otherwise: 64 MiB. */
    public static final long DEFAULT_BUFFER_SIZE = 64L << 20;

    /** The size of a rank's staging half unless told otherwise: 1 MiB. */
    public static final long DEFAULT_CHUNK_SIZE = 1L << 20;

    private final long bufferSize;
    private final long heapSize;
    private final long chunkSize;

    private ShmOptions(Builder builder) {
        super(builder.timeout, builder.warnAfter);
        this.bufferSize = builder.bufferSize;
        this.heapSize = builder.heapSize;
        this.chunkSize = builder.chunkSize;
    }

    /**
     * Returns the size of each rank's P2P buffer.
     *
     * @return the size in bytes; 0 if there is none
     */
    public long bufferSize() {
        return bufferSize;
    }

    /**
     * Returns the size of each rank's P2P heap.
     *
     * @return the size in bytes; 0 if there is none
     */
    public long heapSize() {
        return heapSize;
    }

    /**
     * Returns how much of a tensor a rank exposes to the others at once.
     *
     * @return the size in bytes
     */
    public long chunkSize() {
        return chunkSize;
    }

    /**
     * Returns a builder.
     *
     * @return the builder, with the defaults
     */
    public static Builder builder() {
        return new Builder();
    }

    /** Builds {@link ShmOptions}. */
    public static final class Builder {

        private Duration timeout = DEFAULT_TIMEOUT;
        private Duration warnAfter = DEFAULT_WARN_AFTER;
        private long bufferSize = DEFAULT_BUFFER_SIZE;
        private long heapSize;
        private long chunkSize = DEFAULT_CHUNK_SIZE;

        private Builder() {}

        /**
         * Sets how long an operation waits for the other ranks.
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
         * Sets the size of each rank's P2P buffer. Pages take up room from their first use on.
         *
         * @param bytes the size in bytes; 0 for none
         * @return this builder
         */
        public Builder optBufferSize(long bytes) {
            if (bytes < 0) {
                throw new IllegalArgumentException("the buffer size is negative: " + bytes);
            }
            this.bufferSize = bytes;
            return this;
        }

        /**
         * Sets the size of each rank's P2P heap, from which {@link
         * org.djlx.collectives.p2p.P2pAllocator} gives out arrays. Pages take up room from their
         * first use on.
         *
         * @param bytes the size in bytes; 0, none, unless set
         * @return this builder
         */
        public Builder optHeapSize(long bytes) {
            if (bytes < 0) {
                throw new IllegalArgumentException("the heap size is negative: " + bytes);
            }
            this.heapSize = bytes;
            return this;
        }

        /**
         * Sets how much of a tensor a rank exposes to the others at once.
         *
         * @param bytes the size in bytes; a multiple of 4096
         * @return this builder
         */
        public Builder optChunkSize(long bytes) {
            if (bytes <= 0 || bytes % 4096 != 0) {
                throw new IllegalArgumentException(
                        "the chunk size must be a positive multiple of 4096 bytes: " + bytes);
            }
            this.chunkSize = bytes;
            return this;
        }

        /**
         * Builds the options.
         *
         * @return the options
         */
        public ShmOptions build() {
            return new ShmOptions(this);
        }
    }
}
