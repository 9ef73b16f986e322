/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.bench;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

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
import org.djlx.samples.Main;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import picocli.CommandLine;

@Timeout(120)
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
    void measuresAndKeepsWhatItMeasured() throws Exception {
        String model = folder.resolve("tiny").toString();
        Path json = folder.resolve("decode.json");
        run(0, "serve-model", model, "--text", "../README.md");
        String arguments = "--ranks 2 --clients 1,4 --tokens 5 --requests 2 --json " + json;
        String[] words = ("bench-decode " + model + " " + arguments).split(" ");
        String table = run(0, words);
        assertTrue(table.contains("2 cpu ranks, threads"), table);
        JsonObject report = JsonParser.parseString(Files.readString(json)).getAsJsonObject();
        JsonArray rows = report.getAsJsonArray("served");
        int[] clients = {1, 4};
        assertEquals(clients.length, rows.size());
        for (int i = 0; i < clients.length; i++) {
            JsonObject row = rows.get(i).getAsJsonObject();
            assertEquals(clients[i], row.get("clients").getAsInt());
            assertEquals(clients[i] * 2, row.get("requests").getAsInt());
            assertEquals(0, row.getAsJsonArray("errors").size());
            assertTrue(row.get("tokensPerSecond").getAsDouble() > 0, table);
            double first = row.get("firstTokenMillis").getAsDouble();
            assertTrue(first > 0 && first < row.get("answerMillis").getAsDouble(), table);
        }
        assertTrue(run(2, "bench-decode", model, "--clients", "0").contains("must be 1 or more"));
    }

    /** A server that refuses, cuts off, or gives fewer tokens than asked for. */
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
