// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.text.Normalizer;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Random;
import java.util.stream.Collectors;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** No text has fewer tokens than the lower limit, for each kind of tokenizer. */
class LongestTokenTest {

    private static final String BYTE_LEVEL =
            "{'type':'ByteLevel','add_prefix_space':false,'trim_offsets':false,'use_regex':false}";
    private static final String METASPACE =
            "{'type':'Metaspace','replacement':'▁','prepend_scheme':'first','split':true}";
    private static final String SENTENCE_PIECE =
            "{'type':'Sequence','normalizers':[{'type':'Prepend','prepend':'▁'},"
                    + "{'type':'Replace','pattern':{'String':' '},'content':'▁'}]}";

    private static final List<String> PIECES =
            List.of(
                    "a",
                    "aaaa",
                    " ",
                    "          ",
                    "\u00A0\u2003\u0085\u2028",
                    "ử\u0301",
                    "\t\n",
                    "<t>",
                    "é",
                    "\u03B1\u0313\u0300\u0345", // one character in NFC, U+1F82
                    "\uD87E\uDC00", // a BMP character in NFC
                    "中中中",
                    "\uD83D\uDE00",
                    "\uD800", // an unpaired surrogate
                    "\u0000\u0007",
                    "ﬁ");

    @TempDir private Path directory;

    private static String bpe(Collection<String> tokens, String more) {
        return "{'type':'BPE','merges':[]" + more + ",'vocab':{" + vocabulary(tokens) + "}}";
    }

    private static String vocabulary(Collection<String> tokens) {
        List<String> entries = new ArrayList<>();
        for (String token : tokens) {
            entries.add(quote(token) + ":" + entries.size());
        }
        return String.join(",", entries);
    }

    private static String quote(String token) {
        return token.chars()
                .mapToObj("\\u%04x"::formatted)
                .collect(Collectors.joining("", "'", "'"));
    }

    private static Collection<String> with(Collection<String> tokens, String... more) {
        tokens.addAll(List.of(more));
        return tokens;
    }

    private static String model(String name) {
        Collection<String> words = with(new ArrayList<>(), "<unk>", "a", "▁", "é", "aaaa");
        Collection<String> pieces = with(TokenBytes.byteFallbacks(), "<unk>", "a", "▁", "é");
        return switch (name) {
            case "bytes" -> bpe(TokenBytes.letters(), "");
            case "ascii" ->
                    bpe(
                            TokenBytes.letters().stream()
                                    .filter(letter -> letter.charAt(0) < 128)
                                    .toList(),
                            "");
            case "affix" -> bpe(TokenBytes.letters(), ",'end_of_word_suffix':'</w>'");
            case "fallback" -> bpe(pieces, ",'byte_fallback':true,'unk_token':'<unk>'");
            case "fuses" -> bpe(words, ",'fuse_unk':true,'unk_token':'<unk>'");
            case "drops" -> bpe(words, "");
            case "unigram", "unigram fallback" -> {
                String entries =
                        (name.equals("unigram") ? words : pieces)
                                .stream()
                                        .map(token -> "[" + quote(token) + ",-1.5]")
                                        .collect(Collectors.joining(","));
                int unknown = List.copyOf(name.equals("unigram") ? words : pieces).indexOf("<unk>");
                yield "{'type':'Unigram','unk_id':%d,'byte_fallback':%b,'vocab':[%s]}"
                        .formatted(unknown, !name.equals("unigram"), entries);
            }
            case "words" ->
                    "{'type':'WordLevel','unk_token':'<unk>','vocab':{" + vocabulary(words) + "}}";
            case "word pieces" ->
                    "{'type':'WordPiece','unk_token':'<unk>','continuing_subword_prefix':'##',"
                            + "'max_input_chars_per_word':100,'vocab':{"
                            + vocabulary(words)
                            + "}}";
            default -> throw new AssertionError(name);
        };
    }

    private ModelTokenizer tokenizer(
            String model, String normalizer, String preTokenizer, String added) throws IOException {
        Path file = directory.resolve("tokenizer.json");
        String json =
                """
                {"version":"1.0","truncation":null,"padding":null,"added_tokens":[{"id":1000,
                "content":"<t>","special":false,"single_word":false,"lstrip":%b,"rstrip":%b,
                "normalized":%b}],"normalizer":%s,"pre_tokenizer":%s,"post_processor":null,
                "decoder":null,"model":%s}
                """
                        .formatted(
                                added.equals("lstrip"),
                                added.equals("rstrip"),
                                added.equals("normalized"),
                                normalizer,
                                preTokenizer,
                                model);
        Files.writeString(file, json.replace('\'', '"'));
        return ModelTokenizer.read(file);
    }

    private static String parts(String name) {
        return switch (name) {
            case "none" -> "null";
            case "bytes" -> BYTE_LEVEL;
            case "metaspace" -> METASPACE;
            case "sp" -> SENTENCE_PIECE;
            case "nfc, sp" ->
                    "{'type':'Sequence','normalizers':[{'type':'NFC'}," + SENTENCE_PIECE + "]}";
            case "removes" ->
                    "{'type':'Sequence','pretokenizers':[{'type':'Split','pattern':{'String':' '},"
                            + "'behavior':'Removed','invert':false},"
                            + BYTE_LEVEL
                            + "]}";
            case "isolates" ->
                    "{'type':'Sequence','pretokenizers':[{'type':'Split','pattern':{'Regex':'a+'},"
                            + "'behavior':'Isolated','invert':false},"
                            + BYTE_LEVEL
                            + "]}";
            case "strip" -> "{'type':'Strip','strip_left':true,'strip_right':true}";
            case "shortens" -> "{'type':'Replace','pattern':{'Regex':'a+'},'content':'a'}";
            case "bert" ->
                    "{'type':'BertNormalizer','clean_text':true,'handle_chinese_chars':true,"
                            + "'strip_accents':null,'lowercase':true}";
            default -> "{'type':'" + name + "'}";
        };
    }

    @ParameterizedTest
    @CsvSource({
        "bytes, none, bytes, plain, true",
        "bytes, none, isolates, plain, true",
        "bytes, NFC, bytes, plain, true",
        "bytes, NFC, bytes, normalized, true",
        "bytes, NFD, bytes, plain, false",
        "bytes, NFKC, bytes, plain, false",
        "bytes, strip, bytes, plain, true",
        "bytes, shortens, bytes, plain, false",
        "bytes, none, removes, plain, false",
        "bytes, none, bytes, lstrip, true",
        "bytes, none, bytes, rstrip, true",
        "bytes, NFC, bytes, rstrip, true",
        "bytes, none, none, plain, false",
        "ascii, none, bytes, plain, false",
        "affix, none, bytes, plain, false",
        "fallback, sp, none, plain, true",
        "fallback, sp, none, normalized, true",
        "fallback, 'nfc, sp', none, plain, true",
        "fallback, none, metaspace, plain, true",
        "fallback, bert, metaspace, plain, false",
        "fallback, none, Whitespace, plain, false",
        "fuses, sp, none, plain, false",
        "drops, sp, none, plain, false",
        "unigram fallback, sp, none, plain, true",
        "unigram fallback, none, metaspace, plain, true",
        "unigram, sp, none, plain, false",
        "words, none, WhitespaceSplit, plain, false",
        "words, none, bytes, plain, false",
        "word pieces, bert, BertPreTokenizer, plain, false"
    })
    void noTextHasFewerTokens(
            String model, String normalizer, String preTokenizer, String added, boolean limited)
            throws IOException {
        Random random = new Random(7);
        try (ModelTokenizer tokenizer =
                tokenizer(model(model), parts(normalizer), parts(preTokenizer), added)) {
            assertEquals(limited, tokenizer.leastTokens("a".repeat(1_000_000)) > 10_000);
            for (int i = 0; i < 100; i++) {
                StringBuilder text = new StringBuilder();
                int kinds = 1 + random.nextInt(3);
                for (int k = 0; k < kinds; k++) {
                    String piece = PIECES.get(random.nextInt(PIECES.size()));
                    text.append(piece.repeat(random.nextInt(40)));
                }
                long least = tokenizer.leastTokens(text.toString());
                int tokens = tokenizer.encode(text.toString(), false).length;
                assertTrue(least <= tokens, () -> least + " <= " + tokens + ": " + text);
            }
        }
    }

    /** No character is composed of more than four, or of two that are before the combining ones. */
    @Test
    void charactersAreComposedOfFourAtMost() {
        for (int c = 0; c <= Character.MAX_CODE_POINT; c++) {
            String text = Character.toString(c);
            String divided = Normalizer.normalize(text, Normalizer.Form.NFD);
            String composed = Normalizer.normalize(text, Normalizer.Form.NFC);
            int longest = Math.max(text.length(), divided.length());
            assertTrue(longest <= 4 * composed.length(), Integer.toHexString(c));
            long apart = divided.chars().filter(each -> each < 0x300).count();
            assertTrue(apart <= composed.length(), Integer.toHexString(c));
        }
    }
}
