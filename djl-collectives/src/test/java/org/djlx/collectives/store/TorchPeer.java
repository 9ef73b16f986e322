// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.store;

import static org.junit.jupiter.api.Assertions.assertNotNull;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Assumptions;

/**
 * The tests' end of {@code src/test/peer/TorchPeer.java}: PyTorch's TCPStore in a process of its
 * own. For one thread.
 */
final class TorchPeer implements AutoCloseable {

    private static final Path JARS = Path.of("target", "peer");

    private final Process process;
    private final PrintStream commands;
    private final BufferedReader answers;

    private TorchPeer(Process process) {
        this.process = process;
        commands = new PrintStream(process.getOutputStream(), true, StandardCharsets.US_ASCII);
        answers =
                new BufferedReader(
                        new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8));
    }

    /** Starts the process; on a platform for which there is no peer, the test is skipped. */
    static TorchPeer start() {
        String platform = System.getProperty("os.name") + " " + System.getProperty("os.arch");
        Assumptions.assumeTrue(
                platform.equals("Linux amd64"), "the peer's libraries are not for " + platform);
        Assumptions.assumeTrue(
                Files.isDirectory(JARS),
                "Maven puts the peer's jars into " + JARS.toAbsolutePath());
        ProcessBuilder builder =
                new ProcessBuilder(
                        Path.of(System.getProperty("java.home"), "bin", "java").toString(),
                        "-Xmx512m",
                        // Its own, since two JVMs that fill one cache can crash each other.
                        "-Dorg.bytedeco.javacpp.cachedir=" + JARS.resolve("cache"),
                        "-cp",
                        JARS.resolve("*").toString(),
                        Path.of("src", "test", "peer", "TorchPeer.java").toString());
        try {
            return new TorchPeer(builder.redirectError(ProcessBuilder.Redirect.INHERIT).start());
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /** Sends a command and returns the result. */
    String call(Object... words) {
        send(words);
        return result();
    }

    /** Sends a command. */
    void send(Object... words) {
        StringBuilder line = new StringBuilder();
        for (Object word : words) {
            line.append(line.isEmpty() ? "" : " ").append(word);
        }
        commands.println(line);
    }

    /** Returns the result of the command sent last. */
    String result() {
        String answer;
        try {
            answer = answers.readLine();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        assertNotNull(answer, "The peer has died");
        if (answer.startsWith("error")) {
            throw new IllegalStateException(answer);
        }
        return answer.substring("ok".length()).strip();
    }

    static String hex(byte[] value) {
        return value.length == 0 ? "-" : HexFormat.of().formatHex(value);
    }

    static String hex(String key) {
        return hex(key.getBytes(StandardCharsets.UTF_8));
    }

    static byte[] unhex(String word) {
        return word.equals("-") ? new byte[0] : HexFormat.of().parseHex(word);
    }

    /** Ends the process. */
    @Override
    public void close() {
        commands.close();
        try {
            if (!process.waitFor(10, TimeUnit.SECONDS)) {
                process.destroyForcibly();
            }
        } catch (InterruptedException e) {
            process.destroyForcibly();
            Thread.currentThread().interrupt();
        }
    }
}
