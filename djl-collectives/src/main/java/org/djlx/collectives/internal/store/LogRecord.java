// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.store;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufUtil;
import io.netty.buffer.Unpooled;
import java.io.IOException;
import java.nio.charset.StandardCharsets;

/**
 * One change in a {@link FileLog}, applied atomically. Layout, big-endian:
 *
 * <pre>
 * int32 length of what follows
 * { int8 1 | int32 key length | key in UTF-8 | int32 value length | value }   a key is set
 * { int8 2 | int32 key length | key in UTF-8 | int32 value length | value }   a value is appended
 * { int8 3 | int32 key length | key in UTF-8 }                                a key is deleted
 * { int8 4 }                                                                  a handle is closed
 * </pre>
 */
final class LogRecord {

    private static final int PUT = 1;
    private static final int APPEND = 2;
    private static final int DELETE = 3;
    private static final int CLOSE = 4;

    private final ByteBuf out = Unpooled.buffer();

    /** Records that a key is set. */
    void put(String key, byte[] value) {
        write(PUT, key);
        write(value);
    }

    /** Records that bytes are appended to a value. */
    void append(String key, byte[] tail) {
        write(APPEND, key);
        write(tail);
    }

    /** Records that a key is deleted. */
    void delete(String key) {
        write(DELETE, key);
    }

    /** Records that a handle is closed. */
    void close() {
        out.writeByte(CLOSE);
    }

    boolean isEmpty() {
        return !out.isReadable();
    }

    /** Returns the record without its length. */
    byte[] toBytes() {
        return ByteBufUtil.getBytes(out);
    }

    /** Applies a record, given without its length. Returns the number of handles that it closes. */
    static int apply(byte[] record, KeyValueMap values) throws IOException {
        int closes = 0;
        ByteBuf in = Unpooled.wrappedBuffer(record);
        try {
            while (in.isReadable()) {
                int what = in.readByte();
                switch (what) {
                    case PUT -> values.set(readKey(in), readBytes(in));
                    case APPEND -> values.append(readKey(in), readBytes(in));
                    case DELETE -> values.delete(readKey(in));
                    case CLOSE -> closes++;
                    default -> throw new IOException("unknown record kind " + what);
                }
            }
        } catch (IndexOutOfBoundsException e) {
            throw new IOException("a record is cut off", e);
        }
        return closes;
    }

    private static String readKey(ByteBuf in) throws IOException {
        return new String(readBytes(in), StandardCharsets.UTF_8);
    }

    private static byte[] readBytes(ByteBuf in) throws IOException {
        int length = in.readInt();
        if (length < 0 || length > in.readableBytes()) {
            throw new IOException("invalid record length " + length);
        }
        byte[] bytes = new byte[length];
        in.readBytes(bytes);
        return bytes;
    }

    private void write(int what, String key) {
        out.writeByte(what);
        write(key.getBytes(StandardCharsets.UTF_8));
    }

    private void write(byte[] bytes) {
        out.writeInt(bytes.length).writeBytes(bytes);
    }
}
