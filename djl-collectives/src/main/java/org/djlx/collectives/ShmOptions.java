// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import java.time.Duration;
import org.djlx.collectives.internal.host.Required;
import org.djlx.collectives.spi.BackendOptions;

/** Options of the {@code shm} backend. They must be the same on all ranks of a group. */
public final class ShmOptions extends BackendOptions {

    /** The default size of a rank's P2P buffer: 64 MiB. */
    public static final long DEFAULT_BUFFER_SIZE = 64L << 20;

    /** The default size of one half of a rank's staging buffer: 1 MiB. */
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

    /** {@return the size of each rank's P2P buffer in bytes; 0 if there is none} */
    public long bufferSize() {
        return bufferSize;
    }

    /** {@return the size of each rank's P2P heap in bytes; 0 if there is none} */
    public long heapSize() {
        return heapSize;
    }

    /**
     * {@return the chunk size in bytes: how much of a tensor a rank stages for the other ranks at
     * once}
     */
    public long chunkSize() {
        return chunkSize;
    }

    /** {@return the builder, with the defaults} */
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
         * Sets after how long the log warns of an operation that still waits for other ranks.
         *
         * @param warnAfter the time; 60 s unless set
         * @return this builder
         * @see BackendOptions#warnAfter
         */
        public Builder optWarnAfter(Duration warnAfter) {
            this.warnAfter = Required.argument("optWarnAfter: warnAfter", warnAfter);
            return this;
        }

        /**
         * Sets the size of each rank's P2P buffer. A page takes memory only after its first access.
         *
         * @param bytes the size in bytes; 0 for no buffer; 64 MiB unless set
         * @return this builder
         */
        public Builder optBufferSize(long bytes) {
            this.bufferSize = requireSize("buffer", bytes);
            return this;
        }

        /**
         * Sets the size of each rank's P2P heap, from which {@link
         * org.djlx.collectives.p2p.P2pAllocator} allocates arrays. A page takes memory only after
         * its first access.
         *
         * @param bytes the size in bytes; 0 (no heap) unless set
         * @return this builder
         */
        public Builder optHeapSize(long bytes) {
            this.heapSize = requireSize("heap", bytes);
            return this;
        }

        private static long requireSize(String what, long bytes) {
            if (bytes < 0) {
                throw new IllegalArgumentException(
                        "the " + what + " size must be at least 0 bytes, but is " + bytes);
            }
            return bytes;
        }

        /**
         * Sets the chunk size: how much of a tensor a rank stages for the other ranks at a time.
         * Each rank has two chunks of staging memory.
         *
         * @param bytes the size in bytes, a positive multiple of 4096; 1 MiB unless set
         * @return this builder
         */
        public Builder optChunkSize(long bytes) {
            if (bytes <= 0 || bytes % 4096 != 0) {
                throw new IllegalArgumentException(
                        "the chunk size must be a positive multiple of 4096 bytes, but is "
                                + bytes);
            }
            this.chunkSize = bytes;
            return this;
        }

        /** {@return the options} */
        public ShmOptions build() {
            return new ShmOptions(this);
        }
    }
}
