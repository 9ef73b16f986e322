// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.store;

import io.netty.channel.FileRegion;
import io.netty.util.AbstractReferenceCounted;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.WritableByteChannel;

/**
 * A value that is sent to a client in pieces, without a copy.
 *
 * <p>Netty copies a heap buffer completely into direct memory before sending it, once per client.
 * From a file region it takes only as much as the socket accepts, so this class presents the value
 * as one.
 */
final class ValueRegion extends AbstractReferenceCounted implements FileRegion {

    /** The size of a piece in bytes, which the JDK copies for the socket. */
    private static final int PIECE = 128 << 10;

    private final byte[] value;
    private long transferred;

    ValueRegion(byte[] value) {
        this.value = value;
    }

    @Override
    public long transferTo(WritableByteChannel target, long position) throws IOException {
        int begin = (int) position;
        int length = Math.min(PIECE, value.length - begin);
        int written = target.write(ByteBuffer.wrap(value, begin, length));
        transferred += Math.max(0, written);
        return written;
    }

    @Override
    public long position() {
        return 0;
    }

    @Override
    public long transferred() {
        return transferred;
    }

    @Deprecated
    @Override
    public long transfered() {
        return transferred;
    }

    @Override
    public long count() {
        return value.length;
    }

    @Override
    public FileRegion retain() {
        super.retain();
        return this;
    }

    @Override
    public FileRegion retain(int increment) {
        super.retain(increment);
        return this;
    }

    @Override
    public FileRegion touch() {
        return this;
    }

    @Override
    public FileRegion touch(Object hint) {
        return this;
    }

    @Override
    protected void deallocate() {
        // Heap memory: the garbage collector frees it.
    }
}
