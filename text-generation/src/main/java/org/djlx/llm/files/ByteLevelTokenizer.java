// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.files;

import static org.djlx.collectives.launch.cli.UsageException.refuseIf;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.util.ArrayList;
import java.util.List;

/**
 * The tokenizer of a model that was trained on bytes, or not at all: a token for each byte, and
 * Llama 3's special tokens at the end of the vocabulary. Between them are tokens that it never
 * uses, whose texts are numbers.
 *
 * @param size the number of tokens, {@link #SMALLEST} or more
 */
public record ByteLevelTokenizer(int size) {

    /** The number of byte tokens: a byte's token id is its value. */
    public static final int BYTES = 256;

    public static final String BEGIN = "<|begin_of_text|>";

    static final String END = "<|end_of_text|>";

    static final String END_OF_TURN = "<|eot_id|>";

    private static final List<String> SPECIAL =
            List.of(BEGIN, END, "<|start_header_id|>", "<|end_header_id|>", END_OF_TURN);

    /** The size of the smallest vocabulary: all bytes and the special tokens. */
    public static final int SMALLEST = BYTES + SPECIAL.size();

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

    public ByteLevelTokenizer {
        refuseIf(
                size < SMALLEST,
                "a vocabulary must have %s tokens or more, not %s".formatted(SMALLEST, size));
    }

    /** Returns the id of a special token. */
    public int id(String special) {
        return size - SPECIAL.size() + SPECIAL.indexOf(special);
    }

    /** Returns the visible character that stands for each byte in tokenizer files. */
    private static List<String> letters() {
        List<String> letters = new ArrayList<>();
        int other = BYTES;
        for (int b = 0; b < BYTES; b++) {
            boolean visible = b >= '!' && b <= '~' || b >= 0xa1 && b != 0xad;
            letters.add(String.valueOf((char) (visible ? b : other++)));
        }
        return letters;
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
        letters().forEach(letter -> vocabulary.addProperty(letter, vocabulary.size()));
        for (int number = 0; number < size - SMALLEST; number++) {
            vocabulary.addProperty("\u0120" + number, BYTES + number); // U+0120 stands for a blank
        }
        json.getAsJsonObject("model").add("vocab", vocabulary);
        json.getAsJsonObject("model").add("merges", new JsonArray());
        return json;
    }
}
