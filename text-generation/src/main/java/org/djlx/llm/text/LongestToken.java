// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.google.gson.stream.JsonReader;
import com.google.gson.stream.JsonToken;
import java.io.IOException;
import java.util.Set;

/**
 * The maximum number of characters that one token of a {@code tokenizer.json} stands for. It gives
 * a lower limit of the number of tokens of a text. There is no maximum if characters other than
 * spaces may be dropped, or any number of them may become one token:
 *
 * <ul>
 *   <li>the vocabulary has not all bytes, so that unknown characters are dropped or fused
 *   <li>the model takes an unknown word for one token, as WordPiece does
 *   <li>a normalizer or pre-tokenizer may remove characters
 * </ul>
 */
final class LongestToken {

    /** The first character that may be composed with characters before it, in NFC. */
    private static final int FIRST_COMBINING = 0x300;

    /** One character is composed of four at most, such as U+1F82. */
    private static final int COMPOSED = 4;

    private final Set<String> missingLetters = TokenBytes.letters();
    private final Set<String> missingBytes = TokenBytes.byteFallbacks();
    private int longest;
    private boolean composes; // NFC
    private boolean dropsSpaces;
    private boolean keepsText = true; // except spaces
    private boolean isByteLevel;
    private boolean fallsBackToBytes;
    private boolean dividesWords; // into known parts: BPE and Unigram
    private boolean hasAffixes;

    /** Returns a lower limit of the number of tokens of a text. */
    long leastTokens(String text) {
        boolean knowsAll =
                isByteLevel && missingLetters.isEmpty()
                        || fallsBackToBytes && missingBytes.isEmpty();
        if (longest == 0 || !keepsText || !knowsAll || !dividesWords || hasAffixes) {
            return 0;
        }
        long kept = text.length();
        if (dropsSpaces || composes) {
            kept = text.chars().filter(this::isKept).count();
        }
        if (composes) {
            long apart = text.chars().filter(c -> c < FIRST_COMBINING && isKept(c)).count();
            kept = Math.max(kept / COMPOSED, apart);
        }
        return (kept + longest - 1) / longest;
    }

    private boolean isKept(int c) {
        boolean isSpace = Character.isSpaceChar(c) || Character.isWhitespace(c) || c == 0x85;
        return !dropsSpaces || !isSpace;
    }

    void addToken(JsonObject token) {
        int length = token.get("content").getAsString().length();
        // The normalized form is searched for in normalized texts, and may be longer.
        longest = Math.max(longest, isSet(token, "normalized") ? COMPOSED * length : length);
        dropsSpaces |= isSet(token, "lstrip") || isSet(token, "rstrip"); // those beside it
    }

    private static boolean isSet(JsonObject json, String flag) {
        return json.has(flag) && json.get(flag).getAsBoolean();
    }

    void setNormalizer(JsonElement normalizer) {
        if (!(normalizer instanceof JsonObject json)) {
            return;
        }
        switch (json.get("type").getAsString()) {
            case "NFC" -> composes = true;
            case "Strip" -> dropsSpaces = true;
            case "ByteLevel" -> isByteLevel = true;
            case "Prepend" -> {}
            case "Replace" -> {
                JsonElement text = json.getAsJsonObject("pattern").get("String");
                int replaced = text == null ? 0 : text.getAsString().length();
                keepsText &= replaced == json.get("content").getAsString().length();
            }
            case "Sequence" -> json.getAsJsonArray("normalizers").forEach(this::setNormalizer);
            default -> keepsText = false;
        }
    }

    void setPreTokenizer(JsonElement preTokenizer) {
        if (!(preTokenizer instanceof JsonObject json)) {
            return;
        }
        switch (json.get("type").getAsString()) {
            case "ByteLevel" -> isByteLevel = true;
            case "Metaspace", "Digits" -> {}
            case "Split" -> keepsText &= !json.get("behavior").getAsString().equals("Removed");
            case "Sequence" -> json.getAsJsonArray("pretokenizers").forEach(this::setPreTokenizer);
            default -> keepsText = false;
        }
    }

    /** Reads a model entry by entry, because the vocabulary is large. */
    void readModel(JsonReader reader) throws IOException {
        reader.beginObject();
        while (reader.hasNext()) {
            switch (reader.nextName()) {
                case "vocab" -> readVocabulary(reader);
                case "merges" -> {
                    dividesWords = true;
                    reader.skipValue();
                }
                case "byte_fallback" ->
                        fallsBackToBytes = JsonParser.parseReader(reader).getAsBoolean();
                case "continuing_subword_prefix", "end_of_word_suffix" -> {
                    JsonElement affix = JsonParser.parseReader(reader);
                    hasAffixes |= !affix.isJsonNull() && !affix.getAsString().isEmpty();
                }
                default -> reader.skipValue();
            }
        }
        reader.endObject();
    }

    private void readVocabulary(JsonReader reader) throws IOException {
        if (reader.peek() == JsonToken.BEGIN_OBJECT) {
            reader.beginObject();
            while (reader.hasNext()) {
                String token = reader.nextName();
                TokenBytes.checkId(reader.nextLong(), token);
                add(token);
            }
            reader.endObject();
        } else {
            dividesWords = true;
            reader.beginArray();
            while (reader.hasNext()) {
                JsonArray scored = JsonParser.parseReader(reader).getAsJsonArray();
                add(scored.get(0).getAsString());
            }
            reader.endArray();
        }
    }

    /** Adds a token; it stands for its own number of characters at most, also as bytes. */
    private void add(String token) {
        longest = Math.max(longest, token.length());
        missingLetters.remove(token);
        missingBytes.remove(token);
    }
}
