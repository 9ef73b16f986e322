/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.store;

import io.netty.buffer.ByteBuf;
import io.netty.handler.codec.CorruptedFrameException;
import io.netty.handler.codec.TooLongFrameException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;

/**
 * Reads {@linkplain Request requests} from a connection's bytes as they arrive. It never looks at a
 * byte twice, and makes room for an element only once all of it has arrived.
 *
 * <p>After an exception a parser must not be used again: where the next request begins is unknown.
 */
final class RequestParser {

    private final ServerLimits limits;

    private Command command;
    private int field;
    private List<String> keys;
    private List<byte[]> values;
    private long number;

    /** Bytes of keys and values of the request at hand. */
    private long size;

    /** Length of the key or value at hand, or -1 if it has not arrived. */
    private int length = -1;

    /** Elements left of the list at hand, or -1 if their number has not arrived. */
    private long remaining = -1;

    RequestParser(ServerLimits limits) {
        this.limits = limits;
    }

    /**
     * Takes a request.
     *
     * @param in bytes; those that belong to the request, or to a part of it, are taken
     * @return the request, or null if more bytes are needed
     * @throws CorruptedFrameException if this is not the protocol
     * @throws TooLongFrameException if a limit is exceeded
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
        return request;
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
                        command
                                + " of "
                                + Long.toUnsignedString(count)
                                + " keys; at most "
                                + limits.maxKeysInCommand()
                                + " are accepted");
            }
            remaining = count;
        }
        while (remaining > 0) {
            // Of a pair, the key has been read if there are more keys than values.
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
        if (!readLength(in, "key", ServerLimits.MAX_KEY_BYTES)) {
            return false;
        }
        // Keys are bytes; Latin-1 maps each to one character, whatever they encode.
        keys.add(in.readCharSequence(length, StandardCharsets.ISO_8859_1).toString());
        length = -1;
        return true;
    }

    private boolean readValue(ByteBuf in) {
        if (!readLength(in, "value", limits.maxValueBytes())) {
            return false;
        }
        byte[] value = new byte[length];
        in.readBytes(value);
        values.add(value);
        length = -1;
        return true;
    }

    /** Reads the length of an element, and tells whether all of the element is there. */
    private boolean readLength(ByteBuf in, String what, int max) {
        if (length < 0) {
            if (in.readableBytes() < Long.BYTES) {
                return false;
            }
            long found = in.readLongLE();
            if (found < 0 || found > max) {
                throw new TooLongFrameException(
                        command
                                + " with a "
                                + what
                                + " of "
                                + Long.toUnsignedString(found)
                                + " bytes; at most "
                                + max
                                + " are accepted");
            }
            size += found;
            if (size > limits.maxMessageBytes()) {
                throw new TooLongFrameException(
                        command + " of more than " + limits.maxMessageBytes() + " bytes");
            }
            length = (int) found;
        }
        return in.readableBytes() >= length;
    }
}
