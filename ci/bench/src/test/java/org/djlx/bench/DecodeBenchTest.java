// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDManager;
import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.sun.net.httpserver.HttpServer;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.stream.Stream;
import org.djlx.llm.files.ByteLevelTokenizer;
import org.djlx.llm.files.LlamaDirectory;
import org.djlx.llm.model.KvCacheDtype;
import org.djlx.llm.model.LayerConfig;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.model.Quantization;
import org.djlx.nativeops.torch.ScalarType;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import picocli.CommandLine;

@Timeout(120)
@Tag("slow")
class DecodeBenchTest {

    @TempDir private Path folder;

    private static String run(int code, String... args) {
        StringWriter out = new StringWriter();
        CommandLine root = Main.commandLine();
        root.setOut(new PrintWriter(out, true)).setErr(new PrintWriter(out, true));
        assertEquals(code, root.execute(args), out::toString);
        return out.toString();
    }

    @Test
    void keepsItsMeasurements() throws Exception {
        Path json = folder.resolve("decode.json");
        String table =
                run(
                        0,
                        "bench-decode",
                        "--directory",
                        folder.toString(),
                        "--torch",
                        "no-such-python",
                        "--json",
                        json.toString(),
                        "--ranks=2",
                        "--batches=1,3",
                        "--prompt-tokens=5",
                        "--long-prompt=70",
                        "--clients=1,4",
                        "--tokens=16",
                        "--adapters=2",
                        "--lora-rank=3",
                        "--requests=2");
        assertTrue(table.contains("2 cpu ranks, threads"), table);
        try (Stream<Path> left = Files.list(folder)) {
            assertEquals(List.of(json), left.toList());
        }
        JsonObject report = JsonParser.parseString(Files.readString(json)).getAsJsonObject();
        JsonObject loading = report.getAsJsonObject("loading");
        assertTrue(loading.get("bytes").getAsLong() > 1_700_000, table);
        double seconds = loading.get("seconds").getAsDouble();
        double readSeconds = loading.get("readSeconds").getAsDouble();
        assertTrue(seconds > 0 && readSeconds > 0, table);
        double part = readSeconds / seconds;
        assertTrue(table.contains(String.format(": %.2f of that speed", part)), table);
        JsonArray steps = report.getAsJsonArray("steps");
        int[] batches = {1, 3};
        assertEquals(batches.length, steps.size());
        for (int i = 0; i < batches.length; i++) {
            JsonObject row = steps.get(i).getAsJsonObject();
            assertEquals(batches[i], row.get("batch").getAsInt());
            int count = row.get("steps").getAsInt();
            assertTrue(
                    count > 0 && count <= 16 - 1 - 8,
                    row::toString); // 15 steps; 8 of them are warm-up
            double median = row.get("medianMicros").getAsDouble();
            assertTrue(median > 0 && median <= row.get("p90Micros").getAsDouble(), row::toString);
            assertTrue(row.get("tokensPerSecond").getAsDouble() > 0, row::toString);
            assertTrue(row.get("drawnMedianMicros").getAsDouble() > 0, row::toString);
            assertTrue(row.get("adaptedMedianMicros").getAsDouble() > 0, row::toString);
        }
        JsonObject firstToken = report.getAsJsonObject("firstToken");
        assertEquals(70, firstToken.get("promptTokens").getAsInt());
        assertTrue(firstToken.get("medianMicros").getAsDouble() > 0, table);
        assertTrue(report.get("torch").getAsString().contains("no-such-python"), table);
        JsonArray rows = report.getAsJsonArray("served");
        int[] clients = {1, 4};
        assertEquals(clients.length, rows.size());
        for (int i = 0; i < clients.length; i++) {
            JsonObject row = rows.get(i).getAsJsonObject();
            assertEquals(clients[i], row.get("clients").getAsInt());
            assertEquals(clients[i] * 2, row.get("requests").getAsInt());
            assertEquals(0, row.getAsJsonArray("errors").size());
            assertTrue(row.get("tokensPerSecond").getAsDouble() > 0, table);
            double first = row.get("firstTextMillis").getAsDouble();
            assertTrue(first > 0 && first < row.get("answerMillis").getAsDouble(), table);
        }
    }

    /** The limit of a step: 7,504,658,432 weights of Llama 3 8B, and norms of 532,480 bytes. */
    @ParameterizedTest
    @CsvSource({"NONE, 15009849344", "FP8, 7505190912", "INT4, 3987382272"})
    void countsTheBytesOfQuantizedWeights(Quantization quantization, long bytes) {
        ModelConfig config =
                LlamaDirectory.config(
                        128_256,
                        4096,
                        14_336,
                        32,
                        32,
                        8,
                        8192,
                        500_000,
                        false,
                        ScalarType.BFLOAT16);
        assertEquals(bytes, DecodeBenchCommand.stepBytes(config, 1, quantization, 8));
    }

    /**
     * Of four experts, each token chooses one: two tokens choose 1.75 different ones on average.
     */
    @Test
    void countsTheExpertsThatTheTokensOfABatchChoose() {
        ModelConfig dense =
                LlamaDirectory.config(100, 16, 32, 1, 4, 2, 64, 10_000, false, ScalarType.BFLOAT16);
        ModelConfig mixture =
                new ModelConfig(
                        "mixtral",
                        100,
                        16,
                        4,
                        2,
                        4,
                        64,
                        1e-6,
                        false,
                        List.of(),
                        ScalarType.BFLOAT16,
                        List.of(
                                dense.layer(0)
                                        .withExperts(32, new LayerConfig.Experts(4, 1, true))),
                        1,
                        1,
                        0,
                        false,
                        KvCacheDtype.AUTO);
        long mlp = 3 * 16 * 32 * 2;
        long router = 4 * 16 * 2;
        long others = DecodeBenchCommand.stepBytes(dense, 1, Quantization.NONE, 1) - mlp;
        assertEquals(
                others + router + mlp,
                DecodeBenchCommand.stepBytes(mixture, 1, Quantization.NONE, 1));
        assertEquals(
                others + router + mlp * 7 / 4,
                DecodeBenchCommand.stepBytes(mixture, 1, Quantization.NONE, 2));
    }

    @Test
    void rejectsWhatItCannotMeasure() throws Exception {
        String model = folder.resolve("tiny").toString();
        ModelConfig config =
                LlamaDirectory.config(
                        ByteLevelTokenizer.SMALLEST,
                        8,
                        8,
                        1,
                        1,
                        1,
                        64,
                        10_000,
                        false,
                        ScalarType.FLOAT32);
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            LlamaDirectory.write(
                    Path.of(model),
                    config,
                    1,
                    1 << 20,
                    weight -> LlamaDirectory.random(manager, weight));
        }
        assertTrue(run(2, "bench-decode", "--clients", "0").contains("--clients must be 1"));
        assertTrue(run(2, "bench-decode", model, "--model", "8b").contains("--model"));
        assertTrue(run(2, "bench-decode", "--model", "9b").contains("8b"));
        assertTrue(run(2, "bench-decode", model).contains("longest sequence"));
        String few = "--long-prompt 8 --prompt-tokens 8 --tokens 8";
        String[] words = ("bench-decode " + model + " " + few).split(" ");
        assertTrue(
                run(1, words).contains("fewer than 2 measured steps gave all 1 requests a token"));
    }

    /** A server that refuses, ends early, or sends too few tokens. */
    @ParameterizedTest
    @CsvSource({
        "429, {\"usage\":{\"completion_tokens\":5}}\\n\\ndata: [DONE], 3",
        "200, {\"usage\":{\"completion_tokens\":5}}, 3",
        "200, {\"usage\":{\"completion_tokens\":4}}\\n\\ndata: [DONE], 3",
        "200, {\"usage\":{\"completion_tokens\":5}}\\n\\ndata: [DONE], 0"
    })
    void countsErrors(int status, String answer, int errors) throws Exception {
        HttpServer server =
                HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        byte[] bytes = ("data: " + answer.replace("\\n", "\n")).getBytes(StandardCharsets.UTF_8);
        server.createContext(
                "/v1/completions",
                exchange -> {
                    exchange.sendResponseHeaders(status, bytes.length);
                    exchange.getResponseBody().write(bytes);
                    exchange.close();
                });
        server.start();
        try {
            DecodeBench bench = new DecodeBench(server.getAddress().getPort(), 5);
            assertEquals(errors, bench.run(1, 3).errors().size());
        } finally {
            server.stop(0);
        }
    }
}
