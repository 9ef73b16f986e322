// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Beside the real llama.cpp, from npm: {@code mvn -Pclients test}. */
@Timeout(600)
@Tag("clients")
class LlamaCppCommandTest {

    private static final Path PEERS = Path.of("peers");
    private static final Path INSTALLED = Path.of("target", "llama-cpp");

    @TempDir private Path folder;

    @BeforeAll
    static void install() throws Exception {
        Files.createDirectories(INSTALLED);
        for (String file : List.of("gguf.mjs", "llama_cpp_peer.mjs", "package.json")) {
            Files.writeString(INSTALLED.resolve(file), Files.readString(PEERS.resolve(file)));
        }
        String options = "--no-audit --no-fund --ignore-scripts --prefer-offline";
        Process npm =
                new ProcessBuilder(("npm install " + options).split(" "))
                        .directory(INSTALLED.toFile())
                        .redirectOutput(ProcessBuilder.Redirect.DISCARD) // that of tests is Maven's
                        .redirectError(ProcessBuilder.Redirect.INHERIT)
                        .start();
        assertEquals(0, npm.waitFor());
    }

    private static String run(int code, Path script, String... options) {
        StringWriter out = new StringWriter();
        String[] args = new String[options.length + 2];
        args[0] = "bench-llama-cpp";
        args[1] = script.toString();
        System.arraycopy(options, 0, args, 2, options.length);
        int got =
                Main.commandLine()
                        .setOut(new PrintWriter(out, true))
                        .setErr(new PrintWriter(out, true))
                        .execute(args);
        assertEquals(code, got, out::toString);
        return out.toString();
    }

    /**
     * The same tokens as llama.cpp in float32, also with bfloat16 weights. With weights in
     * bfloat16, llama.cpp rounds the activations of each product, too; its 8 and 4 bits are in
     * blocks of 32.
     */
    @ParameterizedTest
    @CsvSource({
        "FLOAT32, NONE, 1, float32, 32",
        "FLOAT32, NONE, 2, float32, 32",
        "BFLOAT16, NONE, 1, float32, 32",
        "BFLOAT16, NONE, 1, bfloat16, 8",
        "BFLOAT16, INT8, 1, q8_0, 1",
        "BFLOAT16, INT4, 1, q4_0, 1"
    })
    void bothAreMeasured(
            String type, String quantization, String ranks, String peerType, int tokens)
            throws Exception {
        Path json = folder.resolve("report.json");
        String text =
                run(
                        0,
                        INSTALLED.resolve("llama_cpp_peer.mjs"),
                        "--type=" + type,
                        "--quantize=" + quantization,
                        "--ranks=" + ranks,
                        "--peer-type=" + peerType,
                        "--json=" + json);
        assertTrue(text.contains("greedy tokens equal: "), text);
        JsonObject report = JsonParser.parseString(Files.readString(json)).getAsJsonObject();
        assertTrue(report.get("equalTokens").getAsInt() >= tokens, text);
        assertEquals(2, report.getAsJsonArray("programs").size());
        for (JsonElement element : report.getAsJsonArray("programs")) {
            JsonObject row = element.getAsJsonObject();
            assertTrue(row.get("seconds").getAsDouble() > 0, text);
            assertTrue(row.get("firstTokenMicros").getAsDouble() > 0, text);
            assertTrue(row.get("residentBytes").getAsLong() > 50_000_000, text);
            assertEquals(2, row.getAsJsonArray("steps").size());
            for (JsonElement steps : row.getAsJsonArray("steps")) {
                assertTrue(steps.getAsJsonObject().get("medianMicros").getAsDouble() > 0, text);
            }
        }
    }

    @Test
    void saysWhyLlamaCppCannotBeMeasured() {
        String text = run(1, folder.resolve("missing.mjs"));
        assertTrue(text.contains("llama.cpp cannot be measured: it has ended"), text);
    }
}
