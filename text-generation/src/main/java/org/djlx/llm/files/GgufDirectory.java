// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.files;

import com.google.gson.Gson;
import com.google.gson.JsonObject;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.FileTime;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.stream.Stream;
import org.djlx.collectives.safetensors.Safetensors;
import org.djlx.collectives.safetensors.TensorFiles;
import org.djlx.llm.model.PackedFormat;
import org.djlx.nativeops.host.Required;

/**
 * Model directories of GGUF files: the configuration and the tokenizer, written in Hugging Face's
 * layout, and a link to the file that has the weights.
 */
public final class GgufDirectory {

    private static final String SUFFIX = ".gguf";
    private static final String LINK = "model" + SUFFIX;
    private static final Map<FileState, Path> WRITTEN = new HashMap<>();

    private GgufDirectory() {}

    /**
     * Returns the model directory of a path. That of a GGUF file, or of a directory that has one
     * and no {@code config.json}, is a temporary one with the name of the file, the same for each
     * call until the file changes, which the end of the JVM deletes; any other path is returned as
     * it is.
     *
     * @throws IOException if the file cannot be read or is damaged; the message names it
     * @throws IllegalArgumentException if the path is null, its architecture or tokenizer is not
     *     supported, or a directory has several files
     */
    public static Path of(Path path) throws IOException {
        Required.check(path != null, "the model's directory is null");
        if (Files.isRegularFile(path)) {
            return path.toString().endsWith(SUFFIX) ? write(path) : path;
        }
        if (!Files.isDirectory(path) || Files.exists(path.resolve("config.json"))) {
            return path;
        }
        List<Path> files;
        try (Stream<Path> all = Files.list(path)) {
            files =
                    all.filter(each -> each.toString().endsWith(SUFFIX))
                            .filter(each -> !GgufFile.isFurther(each))
                            .sorted()
                            .toList();
        }
        Required.check(
                files.size() <= 1,
                "%s has %d models in GGUF; name a file of one: %s",
                path,
                files.size(),
                files);
        return files.isEmpty() ? path : write(files.get(0));
    }

    /**
     * Opens the weights of a model directory: its safetensors files, whose weights may be packed as
     * AWQ, GPTQ or GPT-OSS, or its GGUF file. Of a model for images and text, those of its language
     * model.
     */
    public static TensorFiles openWeights(Path directory) throws IOException {
        Path file = directory.resolve(LINK);
        Path config = directory.resolve("config.json");
        if (!Files.exists(config)) {
            return Safetensors.open(directory);
        }
        if (Files.exists(file)) {
            return GgufWeights.open(Files.readSymbolicLink(file));
        }
        Optional<PackedFormat> packed = PackedFormat.read(directory);
        TensorFiles files = TextModelFiles.of(Safetensors.open(directory));
        try {
            return packed.isPresent()
                    ? new PackedWeights(files, packed.get())
                    : GptOssWeights.of(files);
        } catch (RuntimeException e) {
            files.close();
            throw e;
        }
    }

    private record FileState(Path file, long bytes, FileTime changed) {}

    private static synchronized Path write(Path path) throws IOException {
        FileState state =
                new FileState(
                        path.toAbsolutePath(), Files.size(path), Files.getLastModifiedTime(path));
        Path written = WRITTEN.get(state);
        if (written != null && Files.exists(written)) {
            return written;
        }
        GgufFile file = GgufFile.read(path);
        Path parent = Files.createTempDirectory("djlx-gguf-");
        Path directory = parent.resolve(file.name());
        try {
            Files.createDirectory(directory);
            write(file, directory);
            Files.createSymbolicLink(directory.resolve(LINK), path.toAbsolutePath());
        } catch (IOException | RuntimeException e) {
            delete(parent, directory);
            throw e;
        }
        Runtime.getRuntime().addShutdownHook(new Thread(() -> delete(parent, directory)));
        WRITTEN.put(state, directory);
        return directory;
    }

    /** Writes the files of a model except its weights. */
    static void write(GgufFile file, Path directory) throws IOException {
        try {
            JsonObject config = new GgufConfig(file).json();
            GgufTokenizer tokenizer = new GgufTokenizer(file);
            config.add("eos_token_id", new Gson().toJsonTree(tokenizer.ends()));
            write(directory.resolve("config.json"), config);
            tokenizer.write(directory);
        } catch (IllegalArgumentException e) {
            throw new IllegalArgumentException(file.path() + ": " + e.getMessage(), e);
        }
    }

    static void write(Path file, Object json) throws IOException {
        Files.writeString(file, new Gson().toJson(json));
    }

    private static void delete(Path parent, Path directory) {
        try (Stream<Path> files = Files.list(directory)) {
            for (Path file : files.toList()) {
                Files.deleteIfExists(file);
            }
            Files.delete(directory);
            Files.delete(parent);
        } catch (IOException e) {
            // The system deletes temporary files.
        }
    }
}
