// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.djlx.llm.TextGenerator;
import org.djlx.llm.engine.TextEngine;
import org.djlx.llm.text.ChatTemplate;
import org.djlx.llm.text.ToolFormat;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/**
 * OpenAI's and Vercel's clients from npm, with a server of two ranks: {@code mvn -Pclients test}.
 */
@Timeout(600)
@Tag("clients")
class ClientsTest extends CommandTest {

    private static final Path SCRIPTS = Path.of("src", "test", "resources", "clients");
    private static final Path INSTALLED = Path.of("target", "clients");

    @TempDir private Path folder;

    private static void run(String... command) throws IOException, InterruptedException {
        Path log = INSTALLED.resolve(command[0] + ".log");
        Process process =
                new ProcessBuilder(command)
                        .directory(INSTALLED.toFile())
                        .redirectErrorStream(true)
                        .redirectOutput(log.toFile())
                        .start();
        assertTrue(process.waitFor(5, TimeUnit.MINUTES), () -> command[0] + " does not end");
        assertEquals(0, process.exitValue(), Files.readString(log));
    }

    @Test
    void clientsFromNpmGetRightAnswers() throws IOException, InterruptedException {
        Files.createDirectories(INSTALLED);
        for (String file : List.of("package.json", "clients.mjs")) {
            Files.writeString(INSTALLED.resolve(file), Files.readString(SCRIPTS.resolve(file)));
        }
        run("npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefer-offline");
        Path model = folder.resolve("tiny");
        output(0, "serve-model", model.toString(), "--max-length", "4096");
        Duration patience = Duration.ofMinutes(1);
        ServerOptions options =
                new ServerOptions(
                        "127.0.0.1",
                        0,
                        "t0ken",
                        List.of(),
                        100_000,
                        100_000,
                        20,
                        patience,
                        patience,
                        Duration.ZERO);
        try (TextGenerator generator =
                        TextEngine.builder().setDirectory(model).optRanks(2).build();
                GenerationServer server =
                        new GenerationServer(
                                new TextApi(
                                        "tiny",
                                        generator,
                                        ChatTemplate.of(model),
                                        ToolFormat.named("hermes"),
                                        null),
                                generator,
                                options)) {
            run("node", "clients.mjs", "http://127.0.0.1:" + server.port(), "t0ken");
        }
    }
}
