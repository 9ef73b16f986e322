// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.store;

import io.netty.buffer.ByteBuf;
import io.netty.handler.codec.CorruptedFrameException;
import io.netty.handler.codec.TooLongFrameException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/**
 * Parses {@linkplain Request requests} from a connection's bytes as they arrive. It reads each byte
 * once, and allocates at most twice the bytes that have arrived, from the server's {@link
 * MemoryBudget}.
 *
 * <p>Do not use a parser after an exception, because the start of the next request is unknown.
 */
final class RequestParser {

    private static final int ELEMENT_BYTES = 64;

    private static final int FIRST_PIECE = 4 << 10;

    /** How many bytes of the budget's reserve a request may use. */
    private static final int SHORT_REQUEST = 8 << 10;

    private final ServerLimits limits;
    private final MemoryBudget memory;

    private Command command;
    private int field;
    private List<String> keys;
    private List<byte[]> values;
    private long number;

    /** The bytes of keys and values of the current request. */
    private long size;

    /** The bytes acquired from the budget for the current request. */
    private long taken;

    /** The received part of the current value; null until its length is known. */
    private byte[] value;

    private int filled;

    /** The length of the current key or value; -1 until known. */
    private int length = -1;

    /** The remaining elements of the current list; -1 until their number is known. */
    private long remaining = -1;

    RequestParser(ServerLimits limits, MemoryBudget memory) {
        this.limits = limits;
        this.memory = memory;
    }

    /**
     * Parses the next request.
     *
     * @param in the received bytes; the bytes of the request are consumed
     * @return the request, or null if more bytes are needed. The memory budget of the request has
     *     been released; code that keeps its data must acquire it again
     * @throws CorruptedFrameException if the bytes are not the protocol
     * @throws TooLongFrameException if a limit is exceeded
     * @throws IllegalArgumentException if the memory limit is exceeded
     */
    Request next(ByteBuf in) {
        if (command == null && !readCommand(in)) {
            return null;
        }
        while (field < command.numFields()) {
            if (!readField(in, command.field(field))) {
                return null;
            }
            field++;
        }
        Request request = new Request(command, keys, values, number);
        command = null;
        close();
        return request;
    }

    /** Releases the budget of an incomplete request. */
    void close() {
        memory.giveBack(taken);
        taken = 0;
    }

    private void take(long bytes) {
        if (taken + bytes <= SHORT_REQUEST) {
            memory.takeLittle(bytes);
        } else {
            memory.take(bytes);
        }
        taken += bytes;
    }

    private boolean readCommand(ByteBuf in) {
        if (!in.isReadable()) {
            return false;
        }
        int code = in.readUnsignedByte();
        command = Command.of(code);
        if (command == null) {
            throw new CorruptedFrameException("unknown command " + code);
        }
        field = 0;
        keys = new ArrayList<>(1);
        values = new ArrayList<>(1);
        number = 0;
        size = 0;
        return true;
    }

    private boolean readField(ByteBuf in, Command.Field what) {
        return switch (what) {
            case U32 -> readNumber(in, Integer.BYTES);
            case I64 -> readNumber(in, Long.BYTES);
            case KEY -> readKey(in);
            case VALUE -> readValue(in);
            case KEYS, PAIRS -> readList(in, what);
        };
    }

    private boolean readNumber(ByteBuf in, int bytes) {
        if (in.readableBytes() < bytes) {
            return false;
        }
        number = bytes == Integer.BYTES ? in.readUnsignedIntLE() : in.readLongLE();
        return true;
    }

    private boolean readList(ByteBuf in, Command.Field what) {
        if (remaining < 0) {
            if (in.readableBytes() < Long.BYTES) {
                return false;
            }
            long count = in.readLongLE();
            if (count < 0 || count > limits.maxKeysInCommand()) {
                throw new TooLongFrameException(
                        "%s of %s keys; at most %s are accepted"
                                .formatted(
                                        command,
                                        Long.toUnsignedString(count),
                                        limits.maxKeysInCommand()));
            }
            remaining = count;
        }
        while (remaining > 0) {
            // In a pair, the key has been read if there are more keys than values.
            boolean atValue = what == Command.Field.PAIRS && keys.size() > values.size();
            if (!(atValue ? readValue(in) : readKey(in))) {
                return false;
            }
            if (atValue || what == Command.Field.KEYS) {
                remaining--;
            }
        }
        remaining = -1;
        return true;
    }

    private boolean readKey(ByteBuf in) {
        if (!readLength(in, "key", limits.maxKeyBytes())) {
            return false;
        }
        if (in.readableBytes() < length) {
            return false;
        }
        take(length + ELEMENT_BYTES);
        // Keys are bytes; Latin-1 maps each byte to one character.
        keys.add(in.readCharSequence(length, StandardCharsets.ISO_8859_1).toString());
        length = -1;
        return true;
    }

    private boolean readValue(ByteBuf in) {
        if (!readLength(in, "value", limits.maxValueBytes())) {
            return false;
        }
        if (value == null) {
            take(ELEMENT_BYTES);
            value = resized(0, Math.min(length, FIRST_PIECE));
            filled = 0;
        }
        while (in.isReadable() && filled < length) {
            if (filled == value.length) {
                value = resized(filled, (int) Math.min(length, 2L * filled));
            }
            int n = Math.min(in.readableBytes(), value.length - filled);
            in.readBytes(value, filled, n);
            filled += n;
        }
        if (filled < length) {
            return false;
        }
        values.add(value);
        value = null;
        length = -1;
        return true;
    }

    /** Returns the current value, enlarged if necessary. */
    private byte[] resized(int before, int after) {
        take(after - before);
        return before == 0 ? new byte[after] : Arrays.copyOf(value, after);
    }

    private boolean readLength(ByteBuf in, String what, int max) {
        if (length < 0) {
            if (in.readableBytes() < Long.BYTES) {
                return false;
            }
            long found = in.readLongLE();
            if (found < 0 || found > max) {
                throw new TooLongFrameException(
                        "%s with a %s of %s bytes; at most %s are accepted"
                                .formatted(command, what, Long.toUnsignedString(found), max));
            }
            size += found;
            if (size > limits.maxMessageBytes()) {
                throw new TooLongFrameException(
                        command + " of more than " + limits.maxMessageBytes() + " bytes");
            }
            length = (int) found;
        }
        return true;
    }
}
