// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.host;

import com.google.gson.Gson;
import com.google.gson.JsonParseException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;

/**
 * The header of each value that a rank exchanges: JSON, then a zero byte, which JSON does not
 * contain, then the value.
 *
 * @param nonce a random number for this rank of this group
 * @param generation the combination of all ranks' nonces, or 0 until known: the same on all ranks
 *     if none has read a stale value
 * @param failure why the rank cannot go on, and has no value; null if it can
 */
record Introduction(
        String group,
        int worldSize,
        long nonce,
        long generation,
        RankProcess process,
        String failure) {

    private static final Gson GSON = new Gson();

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
        byte[] json = GSON.toJson(this).getBytes(StandardCharsets.UTF_8);
        ByteBuffer message = ByteBuffer.allocate(json.length + 1 + value.length);
        return message.put(json).put((byte) 0).put(value).array();
    }

    /** Parses the introduction of a message; returns null if it has none. */
    static Introduction in(byte[] message) {
        int length = lengthIn(message);
        String json = new String(message, 0, length, StandardCharsets.UTF_8);
        try {
            Introduction found = GSON.fromJson(json, Introduction.class);
            boolean complete = found != null && found.group != null && found.process != null;
            return complete && length < message.length ? found : null;
        } catch (JsonParseException e) {
            return null;
        }
    }

    /** Returns the value of a message that has an introduction. */
    static byte[] valueIn(byte[] message) {
        return Arrays.copyOfRange(message, lengthIn(message) + 1, message.length);
    }

    private static int lengthIn(byte[] message) {
        int length = 0;
        while (length < message.length && message[length] != 0) {
            length++;
        }
        return length;
    }
}
