// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class TokenBytesTest {

    private static final String ADDED =
            "\"added_tokens\": [{\"id\": 5, \"content\": \"<s>\", \"special\": true},"
                    + " {\"id\": 6, \"content\": \"<tool_call>\", \"special\": false}]";

    @TempDir private Path directory;

    private List<byte[]> read(String json) throws IOException {
        Path file = directory.resolve("tokenizer.json");
        Files.writeString(file, "{" + ADDED + ", " + json + "}");
        return TokenBytes.read(file);
    }

    private static byte[] utf8(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    @Test
    void byteLevel() throws IOException {
        List<byte[]> tokens =
                read(
                        "\"decoder\": {\"type\": \"ByteLevel\"}, \"model\": {\"merges\": [],"
                                + " \"vocab\": {\"Ġa\": 0, \"ÃŃ\": 1, \"Ċ\": 2, \"Ģ\": 3}}");
        assertArrayEquals(utf8(" a"), tokens.get(0));
        assertArrayEquals(utf8("í"), tokens.get(1)); // its second byte is one that is moved
        assertArrayEquals(utf8("\n"), tokens.get(2));
        assertArrayEquals(new byte[] {(byte) 0x80}, tokens.get(3));
        assertNull(tokens.get(4)); // an id without a token
        assertNull(tokens.get(5)); // a special token
        assertArrayEquals(utf8("<tool_call>"), tokens.get(6));
    }

    @Test
    void sentencePiece() throws IOException {
        List<byte[]> tokens =
                read(
                        "\"decoder\": {\"type\": \"Sequence\"}, \"model\": {\"merges\": [],"
                                + " \"vocab\": {\"▁a▁\": 0, \"<0xC3>\": 1, \"<0x0A>\": 2, \"é\": 3,"
                                + " \"<s>\": 5}}");
        assertArrayEquals(utf8(" a "), tokens.get(0));
        assertArrayEquals(new byte[] {(byte) 0xC3}, tokens.get(1));
        assertArrayEquals(utf8("\n"), tokens.get(2));
        assertArrayEquals(utf8("é"), tokens.get(3));
        assertNull(tokens.get(5));
    }

    @Test
    void unigram() throws IOException {
        List<byte[]> tokens = read("\"model\": {\"vocab\": [[\"▁b\", -1.5], [\"c\", 0]]}");
        assertArrayEquals(utf8(" b"), tokens.get(0));
        assertArrayEquals(utf8("c"), tokens.get(1));
        assertEquals(7, tokens.size());
    }

    @ParameterizedTest
    @ValueSource(strings = {"4194304", "2147483647", "2147483648", "-1", "1e30", "1.5", "null"})
    void idsOutOfRangeAreRefusedWithTheFile(String id) {
        for (String json :
                List.of(
                        "\"model\": {\"merges\": [], \"vocab\": {\"a\": %s}}",
                        "\"model\": {\"merges\": [], \"vocab\": {}}, \"added_tokens\":"
                                + " [{\"id\": %s, \"content\": \"x\", \"special\": true}]")) {
            Path file = directory.resolve("tokenizer.json");
            IllegalArgumentException e =
                    assertThrows(
                            IllegalArgumentException.class,
                            () -> {
                                Files.writeString(file, "{" + json.formatted(id) + "}");
                                TokenBytes.read(file);
                            });
            assertTrue(e.getMessage().startsWith(file.toString()), e.getMessage());
        }
    }

    @Test
    void refusesTokenizersOfOtherTypes() {
        assertThrows(
                IllegalArgumentException.class,
                () -> read("\"model\": {\"type\": \"WordPiece\", \"vocab\": {\"##a\": 0}}"));
    }
}
