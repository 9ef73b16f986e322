// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.djlx.llm.engine.ByteTokens;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Text as tokens that are bytes come. */
class TextStreamTest {

    @TempDir private Path directory;
    private TextTokenizer tokenizer;

    @BeforeEach
    void read() throws IOException {
        ByteTokens.write(directory);
        tokenizer = ModelTokenizer.read(directory.resolve("tokenizer.json"));
    }

    @AfterEach
    void close() {
        tokenizer.close();
    }

    private List<String> stream(String text, String... stops) {
        int[] prompt = tokenizer.encode("prompt ü", true);
        TextStream stream = new TextStream(tokenizer, List.of(stops), prompt);
        List<String> parts = new ArrayList<>();
        for (int token : tokenizer.encode(text, false)) {
            assertFalse(stream.isStopped());
            parts.add(stream.add(token, true));
            if (stream.isStopped()) {
                break;
            }
        }
        parts.add(stream.end());
        return parts;
    }

    @Test
    void leastTokensIsALowerLimit() {
        assertTrue(
                tokenizer.leastTokens("a".repeat(1_000_000))
                        > 1_000); // The longest token is short.
        for (String text : List.of("", "a", " ü€\n", "<s>".repeat(7), "prompt ü ".repeat(50))) {
            int tokens = tokenizer.encode(text, false).length;
            assertTrue(tokenizer.leastTokens(text) <= tokens, text);
        }
    }

    @Test
    void tokensAreBytes() {
        String text = "a ü€\n";
        byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
        int[] tokens = tokenizer.encode(text, true);
        assertEquals(ByteTokens.BEGIN, tokens[0]);
        for (int i = 0; i < bytes.length; i++) {
            assertEquals(Byte.toUnsignedInt(bytes[i]), tokens[1 + i]);
        }
        assertEquals(text, tokenizer.decode(tokens));
        assertArrayEquals(new int[0], tokenizer.encode("", false));
        int[] many = tokenizer.encode("x".repeat(20_000), false);
        assertEquals(20_000, many.length); // It is not cut off.
    }

    @Test
    void emitsOnlyWholeCharacters() {
        assertEquals(List.of("a", "", "ü", "b", ""), stream("aüb"));
        assertEquals(List.of("", "", "", "😀", ""), stream("😀"));
        assertEquals("x", stream("x").get(0));
    }

    @Test
    void emitsHalfACharacterAtTheEnd() {
        TextStream stream = new TextStream(tokenizer, List.of(), new int[] {ByteTokens.BEGIN});
        assertEquals("", stream.add(0xE2, true));
        assertEquals("\uFFFD", stream.end());
    }

    @Test
    void bytesThatAreNoCharactersAreNotHeldBackForEver() {
        TextStream stream = new TextStream(tokenizer, List.of(), new int[] {ByteTokens.BEGIN});
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < 1000; i++) {
            text.append(stream.add(0x80, true));
        }
        assertTrue(text.length() > 900, () -> text.length() + " characters");
        assertEquals("\uFFFD".repeat(1000), text + stream.end());
    }

    @Test
    void stopsAtTheFirstStopString() {
        assertEquals(List.of("a", "", "", ""), stream("axyb", "xy"));
        assertEquals("one ", String.join("", stream("one two three", "three", "two")));
        assertEquals("", String.join("", stream("ab", "ab", "abc")));
        // The longer one begins before, and has come when the shorter one has.
        assertEquals("1", String.join("", stream("1abc2", "c", "abc")));
    }

    @Test
    void emitsTextThatOnlyBeganLikeAStopString() {
        assertEquals(List.of("a", "", "", "xxz", ""), stream("axxz", "xxy"));
        assertEquals(List.of("", "", "aa"), stream("aa", "aab"));
        assertEquals(List.of("", "a", "a", "", ""), stream("aaab", "ab"));
    }

    /** As Llama 2: blanks are U+2581, and the decoder drops the one at the beginning of a text. */
    private static final String SENTENCE_PIECE =
            """
            {
              "added_tokens": [{"id": 0, "content": "<s>", "special": true, "single_word": false,
                "lstrip": false, "rstrip": false, "normalized": false}],
              "normalizer": {"type": "Sequence", "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
              "decoder": {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"}, {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
              "model": {"type": "BPE", "byte_fallback": true, "fuse_unk": true, "unk_token": "<s>",
                "merges": ["▁ a"],
                "vocab": {"<s>": 0, "▁": 1, "a": 2, "▁a": 3, "b": 4, "<0xC3>": 5, "<0xBC>": 6,
                  "<0x0A>": 7}}
            }
            """;

    @Test
    void keepsBlanksAtTheBeginningOfTokens() throws IOException {
        Path file = Files.writeString(directory.resolve("tokenizer.json"), SENTENCE_PIECE);
        tokenizer.close();
        tokenizer = ModelTokenizer.read(file);
        assertEquals(" a", tokenizer.addedText(3));
        assertEquals("", tokenizer.addedText(0));
        assertNull(tokenizer.addedText(5));
        int[] tokens = {3, 3, 4, 5, 6, 7, 3, 0, 3, 1, 5, 4};
        List<String> parts =
                List.of("a", " a", "b", "", "ü", "\n", " a", "", " a", " ", "", "\uFFFDb");
        assertEquals(tokenizer.decode(tokens), String.join("", parts));
        TextStream stream = new TextStream(tokenizer, List.of(), new int[] {0});
        for (int i = 0; i < tokens.length; i++) {
            assertEquals(parts.get(i), stream.add(tokens[i], true));
        }
        assertEquals("", stream.end());
        TextStream continued = new TextStream(tokenizer, List.of("b"), new int[] {4});
        assertEquals(" a", continued.add(3, true));
        assertEquals("", continued.add(4, true));
        assertTrue(continued.isStopped());
    }

    @Test
    void refusesFilesThatAreNoTokenizer() throws IOException {
        Path file = Files.writeString(directory.resolve("tokenizer.json"), "{}");
        String message =
                assertThrows(IllegalArgumentException.class, () -> ModelTokenizer.read(file))
                        .getMessage();
        assertTrue(message.contains(file.toString()), message);
    }

    @Test
    void isNotUsedAfterItIsClosed() {
        tokenizer.close();
        assertThrows(IllegalStateException.class, () -> tokenizer.encode("a", true));
        assertThrows(IllegalStateException.class, () -> tokenizer.decode(new int[] {1}));
    }

    @Test
    void stopStringsCountOnlyOnceTheyMay() {
        TextStream stream = new TextStream(tokenizer, List.of("b"), new int[] {ByteTokens.BEGIN});
        assertEquals("a", stream.add('a', false));
        assertEquals("b", stream.add('b', false));
        assertEquals("c", stream.add('c', true));
        assertEquals("", stream.add('b', true));
        assertTrue(stream.isStopped());
    }
}
