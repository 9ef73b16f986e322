// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import org.djlx.collectives.spi.BackendOptions;

/** Options of the {@code shm} backend. They must be the same on all ranks of a group. */
public final class ShmOptions extends BackendOptions {

    /** The default size of a rank's P2P buffer: 64 MiB. */
    public static final long DEFAULT_BUFFER_SIZE = 64L << 20;

    /** The default size of one half of a rank's staging buffer: 1 MiB. */
    public static final long DEFAULT_CHUNK_SIZE = 1L << 20;

    private final Builder values; // never changed

    private ShmOptions(Builder builder) {
        super(builder, DEFAULTS);
        values = builder.copy();
    }

    /** {@return the size of each rank's P2P buffer in bytes; 0 if there is none} */
    public long bufferSize() {
        return values.bufferSize;
    }

    /** {@return the size of each rank's P2P heap in bytes; 0 if there is none} */
    public long heapSize() {
        return values.heapSize;
    }

    /**
     * {@return the chunk size in bytes: how much of a tensor a rank stages for the other ranks at
     * once}
     */
    public long chunkSize() {
        return values.chunkSize;
    }

    /** {@return the builder, with the defaults} */
    public static Builder builder() {
        return new Builder();
    }

    /** Builds {@link ShmOptions}. */
    public static final class Builder extends BackendOptions.Builder<Builder> {

        private long bufferSize = DEFAULT_BUFFER_SIZE;
        private long heapSize;
        private long chunkSize = DEFAULT_CHUNK_SIZE;

        private Builder() {}

        /**
         * Sets the size of each rank's P2P buffer in bytes; 0 for none, 64 MiB unless set. A page
         * takes memory only after its first access.
         */
        public Builder optBufferSize(long bytes) {
            this.bufferSize = requireSize("buffer", bytes);
            return this;
        }

        /**
         * Sets the size of each rank's P2P heap in bytes, from which {@link
         * org.djlx.collectives.p2p.P2pAllocator} allocates arrays; 0 (none) unless set. A page
         * takes memory only after its first access.
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
         * Sets the chunk size in bytes: how much of a tensor a rank stages for the other ranks at a
         * time; a positive multiple of 4096, 1 MiB unless set. Each rank has two chunks of staging
         * memory.
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
