/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.store;

import io.netty.channel.FileRegion;
import io.netty.util.AbstractReferenceCounted;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.WritableByteChannel;

/**
 * A value on its way to a client, which the connection takes piece by piece from where it is.
 *
 * <p>Netty would copy a buffer of the heap into direct memory as a whole before it sends it, once
 * for each client; what it calls the region of a file it asks for as much as the socket takes.
 */
final class ValueRegion extends AbstractReferenceCounted implements FileRegion {

    /** What the socket is offered at once, and the JDK copies for it. */
    private static final int PIECE = 128 << 10;

    private final byte[] value;
    private long transferred;

    ValueRegion(byte[] value) {
        this.value = value;
    }

    /** {@inheritDoc} */
    @Override
    public long transferTo(WritableByteChannel target, long position) throws IOException {
        int begin = (int) position;
        int length = Math.min(PIECE, value.length - begin);
        int written = target.write(ByteBuffer.wrap(value, begin, length));
        transferred += Math.max(0, written);
        return written;
    }

    /** {@inheritDoc} */
    @Override
    public long position() {
        return 0;
    }

    /** {@inheritDoc} */
    @Override
    public long transferred() {
        return transferred;
    }

    /** {@inheritDoc} */
    @Deprecated
    @Override
    public long transfered() {
        return transferred;
    }

    /** {@inheritDoc} */
    @Override
    public long count() {
        return value.length;
    }

    /** {@inheritDoc} */
    @Override
    public FileRegion retain() {
        super.retain();
        return this;
    }

    /** {@inheritDoc} */
    @Override
    public FileRegion retain(int increment) {
        super.retain(increment);
        return this;
    }

    /** {@inheritDoc} */
    @Override
    public FileRegion touch() {
        return this;
    }

    /** {@inheritDoc} */
    @Override
    public FileRegion touch(Object hint) {
        return this;
    }

    /** {@inheritDoc} */
    @Override
    protected void deallocate() {
        // The garbage collector's.
    }
}
