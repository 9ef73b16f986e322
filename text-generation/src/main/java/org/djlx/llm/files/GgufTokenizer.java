// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.files;

import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.google.gson.stream.JsonWriter;
import java.io.IOException;
import java.io.Writer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.djlx.nativeops.host.Required;

/**
 * Writes the tokenizer of a GGUF file as {@code tokenizer.json} and {@code tokenizer_config.json}.
 * Merges of SentencePiece are derived from its scores: the merge with the best result comes first.
 */
final class GgufTokenizer {

    private static final String KEY = "tokenizer.ggml.";
    private static final int UNKNOWN = 2;
    private static final int CONTROL = 3;
    private static final int USER_DEFINED = 4;

    /** The text that llama.cpp takes for the end of an answer if a file names no such token. */
    private static final Set<String> ENDS =
            Set.of(
                    "<|eot_id|>",
                    "<|eom_id|>",
                    "<|im_end|>",
                    "<|end|>",
                    "<|endoftext|>",
                    "<|end_of_text|>",
                    "<end_of_turn>");

    private static final String CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";

    /** The words of tiktoken's cl100k, with numbers of up to this many digits. */
    private static String words(int digits) {
        return CONTRACTIONS
                + "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
                + (digits == 1 ? "" : "{1," + digits + "}")
                + "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
    }

    /** The words of tiktoken's o200k, with more after words, and numbers of up to some digits. */
    private static String casedWords(String suffix, String digits) {
        String upper = "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]";
        String lower = "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]";
        String first = "[^\\r\\n\\p{L}\\p{N}]?";
        String capitalized = first + upper + "*" + lower + "+" + suffix;
        String uppercase = first + upper + "+" + lower + "*" + suffix;
        return String.join("|", capitalized, uppercase, "\\p{N}" + digits)
                + "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
    }

    /** How a text is divided into words, by {@code tokenizer.ggml.pre}; "" as GPT-2 does. */
    private static final Map<String, String> WORDS = new TreeMap<>();

    static {
        List.of("llama-bpe", "llama3", "llama-v3", "dbrx", "smaug-bpe", "falcon3")
                .forEach(name -> WORDS.put(name, words(3)));
        List.of("qwen2", "deepseek-r1-qwen", "megrez", "hunyuan")
                .forEach(name -> WORDS.put(name, words(1)));
        List.of("default", "gpt-2", "gpt2", "olmo").forEach(name -> WORDS.put(name, ""));
        WORDS.put("smollm", "\\p{N}");
        WORDS.put("tekken", casedWords("", ""));
        WORDS.put("gpt-4o", casedWords(CONTRACTIONS + "?", "{1,3}"));
    }

    /** The division into words of those whose known words are not merged. */
    private static final Set<String> WHOLE_WORDS =
            Set.of("llama-bpe", "llama3", "llama-v3", "tekken", "falcon3");

    private final GgufFile file;
    private final String model;
    private final String words; // the name of the division into words
    private final List<String> tokens;
    private final List<?> types;

    GgufTokenizer(GgufFile file) {
        this.file = file;
        Object kind = value("model");
        Required.check(
                "gpt2".equals(kind) || "llama".equals(kind),
                "%smodel is %s; supported are gpt2 (byte-level BPE) and llama (SentencePiece)",
                KEY,
                kind);
        model = (String) kind;
        words = value("pre") instanceof String name ? name : "default";
        Required.check(
                !isByteLevel() || WORDS.containsKey(words),
                "%spre is %s; supported are %s",
                KEY,
                words,
                WORDS.keySet());
        tokens = texts("tokens");
        List<?> kinds = value("token_type") instanceof List<?> list ? list : List.of();
        types = kinds;
        Required.check(
                types.isEmpty() || types.size() == tokens.size(),
                "%stoken_type has %d entries for %d tokens",
                KEY,
                types.size(),
                tokens.size());
    }

    private boolean isByteLevel() {
        return model.equals("gpt2");
    }

    private Object value(String key) {
        return file.metadata().get(KEY + key);
    }

    private List<String> texts(String key) {
        Required.check(
                value(key) instanceof List<?> list
                        && list.stream().allMatch(String.class::isInstance),
                "%s%s must be a list of texts",
                KEY,
                key);
        return ((List<?>) value(key)).stream().map(String.class::cast).toList();
    }

    private int type(int token) {
        return !types.isEmpty() && types.get(token) instanceof Number type ? type.intValue() : 1;
    }

    /** Returns a special token of the metadata, such as {@code eos}; -1 if there is none. */
    private int special(String name) {
        if (!(value(name + "_token_id") instanceof Number number)) {
            return -1;
        }
        long id = number.longValue();
        Required.check(
                id >= 0 && id < tokens.size(),
                "%s%s_token_id is %d; there are %d tokens",
                KEY,
                name,
                id,
                tokens.size());
        return (int) id;
    }

    /** Returns the tokens that end an answer. */
    Set<Integer> ends() {
        Set<Integer> ends = new LinkedHashSet<>();
        for (String name : List.of("eos", "eot", "eom")) {
            if (special(name) >= 0) {
                ends.add(special(name));
            }
        }
        for (int token = 0; token < tokens.size(); token++) {
            if (type(token) == CONTROL && ENDS.contains(tokens.get(token))) {
                ends.add(token);
            }
        }
        return ends;
    }

    private boolean addsBegin() {
        return value("add_bos_token") instanceof Boolean adds
                ? adds
                : !isByteLevel() || WHOLE_WORDS.contains(words);
    }

    void write(Path directory) throws IOException {
        try (Writer out = Files.newBufferedWriter(directory.resolve("tokenizer.json"));
                JsonWriter json = new JsonWriter(out)) {
            json.beginObject().name("version").value("1.0");
            addedTokens(json);
            JsonObject parts = JsonParser.parseString(parts()).getAsJsonObject();
            for (Map.Entry<String, ?> part : parts.entrySet()) {
                json.name(part.getKey()).jsonValue(part.getValue().toString());
            }
            model(json);
            json.endObject();
        }
        Map<String, Object> config = new LinkedHashMap<>();
        for (String name : List.of("bos", "eos")) {
            if (special(name) >= 0) {
                config.put(name + "_token", tokens.get(special(name)));
            }
        }
        List<Map<String, Object>> templates = new ArrayList<>();
        String key = "tokenizer.chat_template";
        file.metadata()
                .forEach(
                        (name, template) -> {
                            if (name.equals(key) || name.startsWith(key + ".")) {
                                String of =
                                        name.equals(key)
                                                ? "default"
                                                : name.substring(key.length() + 1);
                                templates.add(Map.of("name", of, "template", template));
                            }
                        });
        if (!templates.isEmpty()) {
            config.put("chat_template", templates);
        }
        GgufDirectory.write(directory.resolve("tokenizer_config.json"), config);
    }

    private void addedTokens(JsonWriter json) throws IOException {
        json.name("added_tokens").beginArray();
        for (int token = 0; token < tokens.size(); token++) {
            int type = type(token);
            if (type == CONTROL || type == USER_DEFINED || type == UNKNOWN) {
                json.beginObject().name("id").value(token).name("content").value(tokens.get(token));
                for (String flag : List.of("single_word", "lstrip", "rstrip", "normalized")) {
                    json.name(flag).value(false);
                }
                json.name("special").value(type != USER_DEFINED).endObject();
            }
        }
        json.endArray();
    }

    /** Returns the parts of the file before and after the model. */
    private String parts() {
        String begin =
                """
                "post_processor": null,
                """;
        if (addsBegin() && special("bos") >= 0) {
            begin =
                    """
                    "post_processor": {"type": "TemplateProcessing",
                      "single": [{"SpecialToken": {"id": "BOS", "type_id": 0}},
                                 {"Sequence": {"id": "A", "type_id": 0}}],
                      "pair": [{"Sequence": {"id": "A", "type_id": 0}},
                               {"Sequence": {"id": "B", "type_id": 1}}],
                      "special_tokens": {"BOS": {"id": "BOS", "ids": [%d], "tokens": ["BOS"]}}},
                    """
                            .formatted(special("bos"));
        }
        if (!isByteLevel()) {
            boolean prefixed = !Boolean.FALSE.equals(value("add_space_prefix"));
            return """
            {%s "pre_tokenizer": null,
             "normalizer": {"type": "Sequence", "normalizers": [
               %s {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
             "decoder": {"type": "Sequence", "decoders": [
               {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
               {"type": "ByteFallback"}, {"type": "Fuse"}
               %s]}}
            """
                    .formatted(
                            begin,
                            prefixed ? "{\"type\": \"Prepend\", \"prepend\": \"\u2581\"}," : "",
                            prefixed
                                    ? ", {\"type\": \"Strip\", \"content\": \" \", \"start\": 1,"
                                            + " \"stop\": 0}"
                                    : "");
        }
        String pattern = WORDS.get(words);
        // The digits of smollm are divided first, then words as GPT-2's.
        boolean byGpt2 = pattern.isEmpty() || words.equals("smollm");
        JsonObject regex = new JsonObject();
        regex.addProperty("Regex", pattern);
        String split =
                pattern.isEmpty()
                        ? ""
                        : "{\"type\": \"Split\", \"pattern\": "
                                + regex
                                + ", \"behavior\": \"Isolated\", \"invert\": false},";
        return """
        {%s "normalizer": %s,
         "pre_tokenizer": {"type": "Sequence", "pretokenizers": [%s
           {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": %s}]},
         "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
                     "use_regex": false}}
        """
                .formatted(
                        begin,
                        words.equals("qwen2") ? "{\"type\": \"NFC\"}" : "null",
                        split,
                        byGpt2);
    }

    private void model(JsonWriter json) throws IOException {
        json.name("model").beginObject().name("type").value("BPE");
        json.name("byte_fallback").value(!isByteLevel()).name("fuse_unk").value(!isByteLevel());
        json.name("ignore_merges").value(isByteLevel() && WHOLE_WORDS.contains(words));
        for (int token = 0; token < tokens.size(); token++) {
            if (type(token) == UNKNOWN && !isByteLevel()) {
                json.name("unk_token").value(tokens.get(token));
                break;
            }
        }
        Map<String, Integer> ids = new HashMap<>();
        json.name("vocab").beginObject();
        for (int token = 0; token < tokens.size(); token++) {
            if (ids.putIfAbsent(tokens.get(token), token) == null) {
                json.name(tokens.get(token)).value(token);
            }
        }
        json.endObject().name("merges").beginArray();
        if (isByteLevel()) {
            for (String merge : texts("merges")) {
                json.value(merge);
            }
        } else {
            for (String[] merge : merges(ids)) {
                json.beginArray().value(merge[0]).value(merge[1]).endArray();
            }
        }
        json.endArray().endObject();
    }

    /** Returns all pairs of tokens whose texts together are a token, by its score. */
    private List<String[]> merges(Map<String, Integer> ids) {
        List<?> scores = value("scores") instanceof List<?> list ? list : List.of();
        Required.check(
                scores.size() == tokens.size()
                        && scores.stream().allMatch(Number.class::isInstance),
                "%sscores must have a number for each of the %d tokens",
                KEY,
                tokens.size());
        List<Integer> byScore = new ArrayList<>();
        for (int token = 0; token < tokens.size(); token++) {
            if (type(token) == 1) {
                byScore.add(token);
            }
        }
        byScore.sort(
                (a, b) ->
                        Float.compare(
                                ((Number) scores.get(b)).floatValue(),
                                ((Number) scores.get(a)).floatValue()));
        List<String[]> merges = new ArrayList<>();
        for (int token : byScore) {
            String text = tokens.get(token);
            for (int i = text.offsetByCodePoints(0, Math.min(1, text.length()));
                    i < text.length();
                    i = text.offsetByCodePoints(i, 1)) {
                Integer left = ids.get(text.substring(0, i));
                Integer right = ids.get(text.substring(i));
                if (left != null && right != null && type(left) == 1 && type(right) == 1) {
                    merges.add(new String[] {text.substring(0, i), text.substring(i)});
                }
            }
        }
        return merges;
    }
}
