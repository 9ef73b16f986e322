// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.store;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.Iterator;
import java.util.List;

/** Writes the {@linkplain Command commands} of a client, possibly several into one buffer. */
final class RequestWriter {

    private final ByteArrayOutputStream bytes = new ByteArrayOutputStream(64);

    /** Writes a request of a user's keys. */
    RequestWriter request(Request request) {
        command(request.command());
        Iterator<byte[]> values = request.values().iterator();
        for (int i = 0; i < request.command().numFields(); i++) {
            switch (request.command().field(i)) {
                case U32 -> number32((int) request.number());
                case I64 -> number(request.number());
                case KEY -> key(request.key());
                case VALUE -> value(values.next());
                case KEYS -> keys(request.keys());
                case PAIRS -> {
                    number(request.keys().size());
                    request.keys().forEach(key -> key(key).value(values.next()));
                }
            }
        }
        return this;
    }

    RequestWriter command(Command command) {
        bytes.write(command.code());
        return this;
    }

    RequestWriter key(String key) {
        return rawKey(Command.KEY_PREFIX + key);
    }

    RequestWriter rawKey(String key) {
        return value(key.getBytes(StandardCharsets.UTF_8));
    }

    RequestWriter keys(List<String> keys) {
        number(keys.size());
        keys.forEach(this::key);
        return this;
    }

    RequestWriter value(byte[] value) {
        number(value.length);
        bytes.writeBytes(value);
        return this;
    }

    RequestWriter number(long value) {
        bytes.writeBytes(buffer(Long.BYTES).putLong(value).array());
        return this;
    }

    RequestWriter number32(int value) {
        bytes.writeBytes(buffer(Integer.BYTES).putInt(value).array());
        return this;
    }

    byte[] toBytes() {
        return bytes.toByteArray();
    }

    void writeTo(OutputStream out) throws IOException {
        bytes.writeTo(out);
    }

    private static ByteBuffer buffer(int length) {
        return ByteBuffer.allocate(length).order(ByteOrder.LITTLE_ENDIAN);
    }
}
