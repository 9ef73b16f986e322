// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.llama;

import static org.djlx.samples.common.UsageException.refuseIf;

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
import java.util.TreeMap;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * A byte-level byte-pair encoding trained on a text (Sennrich et al., 2015, <a
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

    private record Pair(String left, String right) {}

    private final Set<String> tokens = new LinkedHashSet<>(); // without special tokens
    private final List<Pair> merges = new ArrayList<>();

    private BytePairEncoding() {}

    /**
     * Trains on a text: repeatedly merges the most frequent pair of adjacent tokens.
     *
     * @param most the maximum number of tokens of the vocabulary, 261 or more; a short text yields
     *     fewer
     */
    static BytePairEncoding train(String text, int most) {
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
     * Adds tokens that the encoder never uses; their texts are numbers.
     *
     * @param size the size of the vocabulary afterwards
     */
    BytePairEncoding fillUp(int size) {
        for (int number = 0; size() < size; number++) {
            tokens.add("\u0120" + number); // U+0120 stands for a blank
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

    /** Sorts the keys, because {@code Map.of} has a different order in every JVM. */
    private static Map<String, Object> sorted(Map<String, ?> json) {
        return new TreeMap<>(json);
    }

    /** Returns Hugging Face's {@code tokenizer.json}, for Gson. */
    Map<String, Object> toJson() {
        Map<String, Object> byteLevel =
                sorted(
                        Map.of(
                                "type", "ByteLevel",
                                "add_prefix_space", false,
                                "trim_offsets", true,
                                "use_regex", true));
        Map<String, Object> json = new TreeMap<>();
        json.put("version", "1.0");
        json.put("added_tokens", SPECIAL.stream().map(this::addedToken).toList());
        json.put("pre_tokenizer", byteLevel);
        json.put("post_processor", beginsWithToken());
        json.put("decoder", byteLevel);
        json.put("model", model());
        return json;
    }

    private Map<String, Object> addedToken(String special) {
        return sorted(
                Map.of(
                        "id", id(special),
                        "content", special,
                        "single_word", false,
                        "lstrip", false,
                        "rstrip", false,
                        "normalized", false,
                        "special", true));
    }

    private Map<String, Object> beginsWithToken() {
        Map<String, Object> begin = part("SpecialToken", BEGIN, 0);
        Map<String, Object> text = part("Sequence", "A", 0);
        Map<String, Object> token =
                sorted(Map.of("id", BEGIN, "ids", List.of(id(BEGIN)), "tokens", List.of(BEGIN)));
        return sorted(
                Map.of(
                        "type", "TemplateProcessing",
                        "single", List.of(begin, text),
                        "pair", List.of(begin, text, part("Sequence", "B", 1)),
                        "special_tokens", sorted(Map.of(BEGIN, token))));
    }

    private static Map<String, Object> part(String kind, String id, int type) {
        return sorted(Map.of(kind, sorted(Map.of("id", id, "type_id", type))));
    }

    private Map<String, Object> model() {
        Map<String, Integer> vocabulary = new LinkedHashMap<>();
        tokens.forEach(token -> vocabulary.put(token, vocabulary.size()));
        Map<String, Object> model = new TreeMap<>();
        model.put("type", "BPE");
        model.put("fuse_unk", false);
        model.put("byte_fallback", false);
        model.put("ignore_merges", false);
        model.put("vocab", vocabulary);
        model.put("merges", merges.stream().map(pair -> pair.left + ' ' + pair.right).toList());
        return model;
    }
}
