// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.files;

import static org.djlx.collectives.launch.cli.UsageException.refuseIf;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
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
 * A byte-level byte-pair encoding trained on a text (Sennrich et al., 2015, <a
 * href="https://arxiv.org/abs/1508.07909">arXiv:1508.07909</a>), with Llama 3's special tokens.
 * Every byte is a token, so it encodes any text.
 */
public final class BytePairEncoding {

    public static final String BEGIN = "<|begin_of_text|>";

    public static final String END = "<|end_of_text|>";

    public static final String END_OF_TURN = "<|eot_id|>";

    /** All special tokens; they are the last tokens of the vocabulary. */
    static final List<String> SPECIAL =
            List.of(BEGIN, END, "<|start_header_id|>", "<|end_header_id|>", END_OF_TURN);

    /** Splits a text into words before training, as GPT-2 does. */
    private static final Pattern WORD =
            Pattern.compile(
                    "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+"
                            + "|\\s+(?!\\S)|\\s+",
                    Pattern.UNICODE_CHARACTER_CLASS);

    private static final int BYTES = 256;

    /** {@code tokenizer.json} without tokens and merges; a text begins with the token BEGIN. */
    private static final String TOKENIZER =
            """
            {
              "version": "1.0",
              "added_tokens": [],
              "pre_tokenizer": {
                "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true
              },
              "post_processor": {
                "type": "TemplateProcessing",
                "single": [
                  {"SpecialToken": {"id": "BEGIN", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
                ],
                "pair": [
                  {"SpecialToken": {"id": "BEGIN", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                  {"Sequence": {"id": "B", "type_id": 1}}
                ],
                "special_tokens": {"BEGIN": {"id": "BEGIN", "ids": [NUMBER], "tokens": ["BEGIN"]}}
              },
              "decoder": {
                "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true
              },
              "model": {
                "type": "BPE", "fuse_unk": false, "byte_fallback": false, "ignore_merges": false
              }
            }
            """;

    private static final String SPECIAL_TOKEN =
            """
            {"single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}
            """;

    private record Pair(String left, String right) {}

    private final Set<String> tokens = new LinkedHashSet<>(); // without special tokens
    private final List<Pair> merges = new ArrayList<>();

    private BytePairEncoding() {}

    /**
     * Trains on a text: repeatedly merges the most frequent pair of adjacent tokens, up to {@code
     * most} tokens, 261 or more; a short text yields fewer.
     */
    public static BytePairEncoding train(String text, int most) {
        refuseIf(
                most < smallest(),
                "a vocabulary must have %s tokens or more, not %s".formatted(smallest(), most));
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
            encoding.tokens.add(pair.left + pair.right); // Different pairs may give one token.
            words = merged(words, pair);
        }
        return encoding;
    }

    /**
     * Adds tokens that the encoder never uses, up to a size of the vocabulary; their texts are
     * numbers.
     */
    BytePairEncoding fillUp(int size) {
        for (int number = 0; size() < size; number++) {
            tokens.add("\u0120" + number); // U+0120 stands for a blank
        }
        return this;
    }

    public static int smallest() {
        return BYTES + SPECIAL.size();
    }

    public int size() {
        return tokens.size() + SPECIAL.size();
    }

    public int id(String special) {
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
        // Break ties by spelling, so every run gives the same result.
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

    JsonObject toJson() {
        String begin = TOKENIZER.replace("BEGIN", BEGIN).replace("NUMBER", "" + id(BEGIN));
        JsonObject json = JsonParser.parseString(begin).getAsJsonObject();
        for (String special : SPECIAL) {
            JsonObject token = JsonParser.parseString(SPECIAL_TOKEN).getAsJsonObject();
            token.addProperty("id", id(special));
            token.addProperty("content", special);
            json.getAsJsonArray("added_tokens").add(token);
        }
        JsonObject vocabulary = new JsonObject();
        tokens.forEach(token -> vocabulary.addProperty(token, vocabulary.size()));
        JsonArray pairs = new JsonArray();
        merges.forEach(pair -> pairs.add(pair.left + ' ' + pair.right));
        json.getAsJsonObject("model").add("vocab", vocabulary);
        json.getAsJsonObject("model").add("merges", pairs);
        return json;
    }
}
