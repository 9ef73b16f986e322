// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** The script of the build that fetches the chat page's libraries, on a machine without npm. */
@Timeout(60)
class PageLibrariesTest {

    @TempDir private Path directory;
    private Path script;

    /** A registry that has one package, {@code twice}. */
    @BeforeEach
    void createRegistry() throws Exception {
        Path source = Path.of("src/main/npm/fetch.sh");
        script = Files.copy(source, directory.resolve("fetch.sh"));
        for (String name :
                "bash tar gzip sha512sum cut sed base64 mktemp mv rmdir mkdir dirname".split(" ")) {
            link(name);
        }
        Path content = Files.createDirectories(directory.resolve("package/lib"));
        Files.writeString(content.resolve("twice.js"), "x => 2 * x");
        Path packages = Files.createDirectories(directory.resolve("registry/twice/-"));
        String tarball = packages.resolve("twice-1.2.0.tgz").toString();
        assertEquals("", shell("tar -czf " + tarball + " -C " + directory + " package"));
        String digest = shell("openssl dgst -sha512 -binary " + tarball + " | base64 -w0");
        writeLibraries("sha512-" + digest);
    }

    private void link(String name) throws Exception {
        Path tools = Files.createDirectories(directory.resolve("tools"));
        Files.createSymbolicLink(tools.resolve(name), Path.of(shell("command -v " + name).strip()));
    }

    private void writeLibraries(String integrity) throws IOException {
        Files.writeString(
                directory.resolve("libraries.txt"),
                "# comment\ntwice 1.2.0 lib/twice.js " + integrity + "\n");
    }

    private static String shell(String command) throws Exception {
        return output(new ProcessBuilder("bash", "-c", command), 0);
    }

    private static String output(ProcessBuilder builder, int status) throws Exception {
        Process process = builder.redirectErrorStream(true).start();
        String output = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        assertTrue(process.waitFor(30, TimeUnit.SECONDS));
        assertEquals(status, process.exitValue(), output);
        return output;
    }

    private String fetch(int status) throws Exception {
        List<String> command = List.of("bash", script.toString(), "cache", "classes");
        ProcessBuilder builder = new ProcessBuilder(command).directory(directory.toFile());
        builder.environment().put("PATH", directory.resolve("tools").toString());
        builder.environment().put("NPM_REGISTRY", "file://" + directory.resolve("registry"));
        return output(builder, status);
    }

    @Test
    void curlDownloadsWithoutNpm() throws Exception {
        link("curl");
        Path file = directory.resolve("classes/twice/lib/twice.js");
        for (int i = 0; i < 2; i++) { // The second time from the cache.
            assertEquals("", fetch(0));
            assertEquals("x => 2 * x", Files.readString(file));
            Files.delete(file);
            Files.deleteIfExists(directory.resolve("registry/twice/-/twice-1.2.0.tgz"));
        }
        Files.delete(directory.resolve("cache/twice-1.2.0.tgz"));
        String message = fetch(1);
        assertTrue(message.contains("curl cannot download twice@1.2.0; set NPM_REGISTRY"), message);
    }

    @Test
    void withoutNpmAndCurlTheErrorSaysWhatToInstall() throws Exception {
        String message = fetch(1);
        assertTrue(message.contains("neither npm nor curl found"), message);
        assertTrue(message.contains("put twice-1.2.0.tgz into"), message);
    }

    @Test
    void otherTarballIsRefused() throws Exception {
        link("curl");
        writeLibraries("sha512-b3RoZXI=");
        String message = fetch(1);
        assertTrue(message.contains("twice-1.2.0.tgz has integrity sha512-"), message);
        assertTrue(message.contains("but libraries.txt says sha512-b3RoZXI="), message);
        assertTrue(Files.notExists(directory.resolve("classes/twice")));
    }
}
