// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.store;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;

/**
 * The header of each value that a rank exchanges. Layout, big-endian:
 *
 * <pre>
 * int32 MAGIC | int32 length of the rest of the introduction
 * int32 length of the name | the name in UTF-8 | int32 world size | int64 nonce | int64 generation
 * int32 length of the host | the host in UTF-8 | int64 process id | int64 start time
 * </pre>
 *
 * @param group the group's name
 * @param worldSize the number of ranks
 * @param nonce a random number for this rank of this group
 * @param generation the combination of all ranks' nonces, or 0 until known: the same on all ranks
 *     if none has read a stale value
 * @param process the rank's process
 */
record Introduction(String group, int worldSize, long nonce, long generation, RankProcess process) {

    private static final int MAGIC = 0x444A4C31;

    /** Combines the nonces of all ranks, in rank order. */
    static long generation(List<Introduction> ranks) {
        long combined = 1;
        for (Introduction rank : ranks) {
            combined = combined * 0x9E3779B97F4A7C15L + rank.nonce;
        }
        return combined == 0 ? 1 : combined;
    }

    /** Returns this introduction followed by a value. */
    byte[] before(byte[] value) {
        try {
            ByteArrayOutputStream body = new ByteArrayOutputStream();
            DataOutputStream out = new DataOutputStream(body);
            writeText(out, group);
            out.writeInt(worldSize);
            out.writeLong(nonce);
            out.writeLong(generation);
            writeText(out, process.host());
            out.writeLong(process.pid());
            out.writeLong(process.startTime());
            ByteArrayOutputStream message = new ByteArrayOutputStream();
            DataOutputStream all = new DataOutputStream(message);
            all.writeInt(MAGIC);
            all.writeInt(body.size());
            body.writeTo(all);
            all.write(value);
            return message.toByteArray();
        } catch (IOException e) {
            throw new UncheckedIOException("cannot write to memory", e);
        }
    }

    /** Parses the introduction of a message; returns null if it has none. */
    static Introduction in(byte[] message) {
        DataInputStream in = new DataInputStream(new ByteArrayInputStream(message));
        try {
            if (in.readInt() != MAGIC) {
                return null;
            }
            int length = in.readInt();
            if (length < 0 || length > in.available()) {
                return null;
            }
            return new Introduction(
                    readText(in),
                    in.readInt(),
                    in.readLong(),
                    in.readLong(),
                    new RankProcess(readText(in), in.readLong(), in.readLong()));
        } catch (IOException e) {
            return null;
        }
    }

    private static void writeText(DataOutputStream out, String text) throws IOException {
        byte[] utf8 = text.getBytes(StandardCharsets.UTF_8);
        out.writeInt(utf8.length);
        out.write(utf8);
    }

    private static String readText(DataInputStream in) throws IOException {
        int length = in.readInt();
        if (length < 0 || length > in.available()) {
            throw new IOException("invalid text length " + length);
        }
        return new String(in.readNBytes(length), StandardCharsets.UTF_8);
    }

    /** Returns the value of a message that has an introduction. */
    static byte[] valueIn(byte[] message) {
        int length = ByteBuffer.wrap(message).getInt(Integer.BYTES);
        return Arrays.copyOfRange(message, 2 * Integer.BYTES + length, message.length);
    }
}
