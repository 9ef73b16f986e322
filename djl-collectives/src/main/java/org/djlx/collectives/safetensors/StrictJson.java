// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.safetensors;

import com.google.gson.Strictness;
import com.google.gson.stream.JsonReader;
import com.google.gson.stream.JsonToken;
import com.google.gson.stream.MalformedJsonException;
import java.io.EOFException;
import java.io.IOException;
import java.io.StringReader;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.HashSet;
import java.util.Set;

/**
 * Reads a JSON object whose keys are unique. Gson's own readers accept duplicate keys, and accept
 * 1.0e3 as an integer.
 */
final class StrictJson {

    /** Reads the value of a key; must consume it. */
    interface Member {
        void read(String key, JsonReader json) throws IOException;
    }

    private StrictJson() {}

    /**
     * Reads a text that consists of one object; the IOException of other bytes gives the reason.
     */
    static void read(byte[] utf8, Member member) throws IOException {
        String text;
        try {
            text = StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(utf8)).toString();
        } catch (CharacterCodingException e) {
            throw new IOException("it is not UTF-8", e);
        }
        try (JsonReader json = new JsonReader(new StringReader(text))) {
            json.setStrictness(Strictness.STRICT);
            object(json, member);
            json.peek(); // Fails unless this is the end.
        } catch (MalformedJsonException | EOFException e) {
            throw new IOException("it is not JSON: " + reason(e), e);
        } catch (IllegalStateException e) {
            throw new IOException(reason(e), e);
        }
    }

    /** Returns Gson's reason without its advice to programmers. */
    private static String reason(Exception e) {
        return String.valueOf(e.getMessage())
                .lines()
                .findFirst()
                .orElse("")
                .replaceFirst("^Use JsonReader.* to accept malformed JSON ", "");
    }

    static void object(JsonReader json, Member member) throws IOException {
        json.beginObject();
        Set<String> keys = new HashSet<>();
        while (json.hasNext()) {
            String key = json.nextName();
            if (!keys.add(key)) {
                throw new IOException("the key '" + key + "' occurs twice");
            }
            member.read(key, json);
        }
        json.endObject();
    }

    static String string(JsonReader json) throws IOException {
        if (json.peek() != JsonToken.STRING) {
            throw new IOException("there is no string at " + json.getPath());
        }
        return json.nextString();
    }

    /** Reads an integer, 0 or more. */
    static long count(JsonReader json) throws IOException {
        if (json.peek() == JsonToken.NUMBER) {
            String path = json.getPath();
            String digits = json.nextString();
            try {
                if (digits.matches("[0-9]+")) {
                    return Long.parseLong(digits);
                }
            } catch (NumberFormatException e) {
                throw new IOException(digits + " at " + path + " is too large", e);
            }
            throw new IOException(digits + " at " + path + " is not an integer of 0 or more");
        }
        throw new IOException("there is no number at " + json.getPath());
    }
}
