// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.store;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
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

    private final ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    private final DataOutputStream out = new DataOutputStream(bytes);

    LogRecord() {}

    /** Records that a key is set. */
    void put(String key, byte[] value) {
        writePair(PUT, key, value);
    }

    /** Records that bytes are appended to a value. */
    void append(String key, byte[] tail) {
        writePair(APPEND, key, tail);
    }

    /** Records that a key is deleted. */
    void delete(String key) {
        write(
                () -> {
                    out.writeByte(DELETE);
                    writeBytes(key.getBytes(StandardCharsets.UTF_8));
                });
    }

    /** Records that a handle is closed. */
    void close() {
        write(() -> out.writeByte(CLOSE));
    }

    boolean isEmpty() {
        return bytes.size() == 0;
    }

    /** Returns the record without its length. */
    byte[] toBytes() {
        return bytes.toByteArray();
    }

    /** Applies a record, given without its length. Returns the number of handles that it closes. */
    static int apply(byte[] record, KeyValueMap values) throws IOException {
        int closes = 0;
        DataInputStream in = new DataInputStream(new ByteArrayInputStream(record));
        while (in.available() > 0) {
            int what = in.readByte();
            switch (what) {
                case PUT -> values.set(readKey(in), readBytes(in));
                case APPEND -> values.append(readKey(in), readBytes(in));
                case DELETE -> values.delete(readKey(in));
                case CLOSE -> closes++;
                default -> throw new IOException("unknown record kind " + what);
            }
        }
        return closes;
    }

    private static String readKey(DataInputStream in) throws IOException {
        return new String(readBytes(in), StandardCharsets.UTF_8);
    }

    private static byte[] readBytes(DataInputStream in) throws IOException {
        int length = in.readInt();
        if (length < 0 || length > in.available()) {
            throw new IOException("invalid record length " + length);
        }
        return in.readNBytes(length);
    }

    private void writePair(int what, String key, byte[] value) {
        write(
                () -> {
                    out.writeByte(what);
                    writeBytes(key.getBytes(StandardCharsets.UTF_8));
                    writeBytes(value);
                });
    }

    private void writeBytes(byte[] value) throws IOException {
        out.writeInt(value.length);
        out.write(value);
    }

    private static void write(Write action) {
        try {
            action.run();
        } catch (IOException e) {
            throw new UncheckedIOException("cannot write to memory", e);
        }
    }

    private interface Write {
        void run() throws IOException;
    }
}
