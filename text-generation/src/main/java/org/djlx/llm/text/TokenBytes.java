// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.Reader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/**
 * The bytes that tokens stand for, from a {@code tokenizer.json}: byte-level vocabularies write
 * each byte as a character (GPT-2's alphabet), SentencePiece writes a space as U+2581 and a byte as
 * {@code <0x0A>}.
 */
final class TokenBytes {

    private static final Pattern BYTE = Pattern.compile("<0x([0-9A-F]{2})>");

    /** The bytes that the alphabet of byte-level vocabularies writes as U+0100, U+0101 ... */
    private static final int[] UNPRINTABLE =
            IntStream.range(0, 256)
                    .filter(b -> b <= ' ' || (b >= 0x7F && b <= 0xA0) || b == 0xAD)
                    .toArray();

    /**
     * The largest id of a token. It limits the memory that a damaged file can take, because the
     * list of tokens has an element for each id up to the largest. Vocabularies have up to 300,000
     * tokens.
     */
    private static final int MAX_ID = (1 << 22) - 1;

    private TokenBytes() {}

    /**
     * Checks the id of a token before it is taken for a size. Throws if no vocabulary has such an
     * id.
     */
    static int checkId(long id, String token) {
        if (id < 0 || id > MAX_ID) {
            throw new IllegalArgumentException(
                    "the id %d of the token '%s' is out of range: ids are from 0 to %d"
                            .formatted(id, token, MAX_ID));
        }
        return (int) id;
    }

    /** Returns how byte-level vocabularies write each byte. */
    static Set<String> letters() {
        Set<String> letters = new HashSet<>();
        for (int value = 0; value < 256; value++) {
            int moved = Arrays.binarySearch(UNPRINTABLE, value);
            letters.add(Character.toString(moved < 0 ? value : 256 + moved));
        }
        return letters;
    }

    static Set<String> byteFallbacks() {
        return IntStream.range(0, 256)
                .mapToObj("<0x%02X>"::formatted)
                .collect(Collectors.toCollection(HashSet::new));
    }

    /**
     * Reads the bytes of all tokens; null for special tokens and ids without a token. Throws an
     * IllegalArgumentException if the kind of vocabulary is not supported.
     */
    static List<byte[]> read(Path file) throws IOException {
        try (Reader reader = Files.newBufferedReader(file)) {
            return read(JsonParser.parseReader(reader).getAsJsonObject());
        } catch (RuntimeException e) { // A value is missing, or has a wrong type or range.
            throw new IllegalArgumentException(
                    file + ": the bytes of the tokens cannot be read: " + e.getMessage(), e);
        }
    }

    private static List<byte[]> read(JsonObject json) {
        boolean isByteLevel =
                (json.get("decoder") + "" + json.get("pre_tokenizer")).contains("\"ByteLevel\"");
        JsonObject model = json.getAsJsonObject("model");
        List<byte[]> tokens = new ArrayList<>();
        if (model.get("vocab") instanceof JsonArray unigrams) {
            unigrams.forEach(
                    each -> tokens.add(bytes(each.getAsJsonArray().get(0).getAsString(), false)));
        } else if (model.has("merges")) {
            model.getAsJsonObject("vocab")
                    .asMap()
                    .forEach((text, id) -> set(tokens, id, text, bytes(text, isByteLevel)));
        } else {
            throw new IllegalArgumentException("grammars require a BPE or Unigram tokenizer");
        }
        if (json.get("added_tokens") instanceof JsonArray added) {
            for (JsonElement element : added) {
                JsonObject token = element.getAsJsonObject();
                String text = token.get("content").getAsString();
                boolean isSpecial = token.get("special").getAsBoolean();
                byte[] utf8 = isSpecial ? null : text.getBytes(StandardCharsets.UTF_8);
                set(tokens, token.get("id"), text, utf8);
            }
        }
        return tokens;
    }

    private static void set(List<byte[]> tokens, JsonElement json, String text, byte[] bytes) {
        int id = checkId(json.getAsBigDecimal().longValueExact(), text);
        while (tokens.size() <= id) {
            tokens.add(null);
        }
        tokens.set(id, bytes);
    }

    private static byte[] bytes(String token, boolean isByteLevel) {
        if (!isByteLevel) {
            Matcher matcher = BYTE.matcher(token);
            return matcher.matches()
                    ? new byte[] {(byte) Integer.parseInt(matcher.group(1), 16)}
                    : token.replace('\u2581', ' ').getBytes(StandardCharsets.UTF_8);
        }
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        for (char c : token.toCharArray()) {
            bytes.write(c < 256 ? c : UNPRINTABLE[(c - 256) % UNPRINTABLE.length]);
        }
        return bytes.toByteArray();
    }
}
