/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.llama;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * A tokenizer trained on a text: byte-pair encoding of bytes (Sennrich et al., 2015, <a
 * href="https://arxiv.org/abs/1508.07909">arXiv:1508.07909</a>), with Llama 3's special tokens.
 * Every byte is a token, so it encodes any text.
 */
final class BytePairEncoding {

    /** Begins every text. */
    static final String BEGIN = "<|begin_of_text|>";

    /** Ends a text. */
    static final String END = "<|end_of_text|>";

    /** Ends a message of a chat. */
    static final String END_OF_TURN = "<|eot_id|>";

    /** All special tokens; they are the last ones of the vocabulary. */
    static final List<String> SPECIAL =
            List.of(BEGIN, END, "<|start_header_id|>", "<|end_header_id|>", END_OF_TURN);

    /** Splits a text into words before training, as GPT-2 does. */
    private static final Pattern WORD =
            Pattern.compile(
                    "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+"
                            + "|\\s+(?!\\S)|\\s+",
                    Pattern.UNICODE_CHARACTER_CLASS);

    private static final int BYTES = 256;

    private record Pair(String left, String right) {}

    private final Set<String> tokens = new LinkedHashSet<>(); // without the special ones
    private final List<Pair> merges = new ArrayList<>();

    private BytePairEncoding() {}

    /**
     * Trains on a text: repeatedly merges the most frequent pair of adjacent tokens.
     *
     * @param text the text
     * @param most the most tokens of the vocabulary, 261 or more; a short text yields fewer
     * @return the tokenizer
     */
    static BytePairEncoding train(String text, int most) {
        if (most < smallest()) {
            throw new IllegalArgumentException(
                    "a vocabulary must have " + smallest() + " tokens or more, not " + most);
        }
        BytePairEncoding encoding = new BytePairEncoding();
        String[] letters = letters();
        encoding.tokens.addAll(Arrays.asList(letters));
        Map<List<String>, Integer> words = words(text, letters);
        while (encoding.size() < most) {
            Pair pair = mostFrequent(words);
            if (pair == null) {
                break;
            }
            encoding.merges.add(pair);
            encoding.tokens.add(pair.left + pair.right); // Different pairs may be spelled alike.
            words = merged(words, pair);
        }
        return encoding;
    }

    /**
     * Adds tokens that no text is encoded to; their own texts are numbers.
     *
     * @param size the tokens of the vocabulary afterwards
     * @return this
     */
    BytePairEncoding fillUp(int size) {
        for (int number = 0; size() < size; number++) {
            tokens.add("\u0120" + number); // a blank before it
        }
        return this;
    }

    /** Returns the size of a vocabulary without merged tokens. */
    static int smallest() {
        return BYTES + SPECIAL.size();
    }

    /** Returns the size of the vocabulary. */
    int size() {
        return tokens.size() + SPECIAL.size();
    }

    /** Returns the id of a special token. */
    int id(String special) {
        return tokens.size() + SPECIAL.indexOf(special);
    }

    /** Returns the visible character that stands for each byte in tokenizer files. */
    private static String[] letters() {
        String[] letters = new String[BYTES];
        int other = BYTES;
        for (int b = 0; b < BYTES; b++) {
            boolean visible = b >= '!' && b <= '~' || b >= 0xa1 && b != 0xad;
            letters[b] = String.valueOf((char) (visible ? b : other++));
        }
        return letters;
    }

    private static Map<List<String>, Integer> words(String text, String[] letters) {
        Map<List<String>, Integer> words = new LinkedHashMap<>();
        Matcher matcher = WORD.matcher(text);
        while (matcher.find()) {
            List<String> word = new ArrayList<>();
            for (byte b : matcher.group().getBytes(StandardCharsets.UTF_8)) {
                word.add(letters[Byte.toUnsignedInt(b)]);
            }
            words.merge(word, 1, Integer::sum);
        }
        return words;
    }

    private static Pair mostFrequent(Map<List<String>, Integer> words) {
        Map<Pair, Integer> counts = new HashMap<>();
        words.forEach(
                (word, count) -> {
                    for (int i = 1; i < word.size(); i++) {
                        Pair pair = new Pair(word.get(i - 1), word.get(i));
                        counts.merge(pair, count, Integer::sum);
                    }
                });
        // Ties are broken by spelling, the same in every run.
        return counts.entrySet().stream()
                .filter(entry -> entry.getValue() > 1)
                .max(
                        Map.Entry.<Pair, Integer>comparingByValue()
                                .thenComparing(
                                        entry -> entry.getKey().left + ' ' + entry.getKey().right,
                                        Comparator.reverseOrder()))
                .map(Map.Entry::getKey)
                .orElse(null);
    }

    private static Map<List<String>, Integer> merged(Map<List<String>, Integer> words, Pair pair) {
        Map<List<String>, Integer> result = new LinkedHashMap<>();
        words.forEach(
                (word, count) -> {
                    List<String> merged = new ArrayList<>();
                    for (String token : word) {
                        int last = merged.size() - 1;
                        if (last >= 0
                                && token.equals(pair.right)
                                && merged.get(last).equals(pair.left)) {
                            merged.set(last, pair.left + pair.right);
                        } else {
                            merged.add(token);
                        }
                    }
                    result.merge(merged, count, Integer::sum);
                });
        return result;
    }

    /** Returns the text of Hugging Face's {@code tokenizer.json}. */
    JsonObject toJson() {
        JsonObject byteLevel = new JsonObject();
        byteLevel.addProperty("type", "ByteLevel");
        byteLevel.addProperty("add_prefix_space", false);
        byteLevel.addProperty("trim_offsets", true);
        byteLevel.addProperty("use_regex", true);
        JsonObject json = new JsonObject();
        json.addProperty("version", "1.0");
        json.add("added_tokens", addedTokens());
        json.add("pre_tokenizer", byteLevel);
        json.add("post_processor", beginsWithToken());
        json.add("decoder", byteLevel);
        json.add("model", model());
        return json;
    }

    private JsonArray addedTokens() {
        JsonArray added = new JsonArray();
        for (String special : SPECIAL) {
            JsonObject token = new JsonObject();
            token.addProperty("id", id(special));
            token.addProperty("content", special);
            for (String flag : List.of("single_word", "lstrip", "rstrip", "normalized")) {
                token.addProperty(flag, false);
            }
            token.addProperty("special", true);
            added.add(token);
        }
        return added;
    }

    private JsonObject beginsWithToken() {
        JsonArray single = new JsonArray();
        single.add(templatePart("SpecialToken", BEGIN, 0));
        single.add(templatePart("Sequence", "A", 0));
        JsonArray pair = single.deepCopy();
        pair.add(templatePart("Sequence", "B", 1));
        JsonArray ids = new JsonArray();
        ids.add(id(BEGIN));
        JsonArray names = new JsonArray();
        names.add(BEGIN);
        JsonObject token = new JsonObject();
        token.addProperty("id", BEGIN);
        token.add("ids", ids);
        token.add("tokens", names);
        JsonObject special = new JsonObject();
        special.add(BEGIN, token);
        JsonObject processor = new JsonObject();
        processor.addProperty("type", "TemplateProcessing");
        processor.add("single", single);
        processor.add("pair", pair);
        processor.add("special_tokens", special);
        return processor;
    }

    private static JsonObject templatePart(String kind, String id, int type) {
        JsonObject content = new JsonObject();
        content.addProperty("id", id);
        content.addProperty("type_id", type);
        JsonObject part = new JsonObject();
        part.add(kind, content);
        return part;
    }

    private JsonObject model() {
        JsonObject vocabulary = new JsonObject();
        tokens.forEach(token -> vocabulary.addProperty(token, vocabulary.size()));
        JsonArray pairs = new JsonArray();
        merges.forEach(pair -> pairs.add(pair.left + ' ' + pair.right));
        JsonObject model = new JsonObject();
        model.addProperty("type", "BPE");
        model.addProperty("fuse_unk", false);
        model.addProperty("byte_fallback", false);
        model.addProperty("ignore_merges", false);
        model.add("vocab", vocabulary);
        model.add("merges", pairs);
        return model;
    }
}
