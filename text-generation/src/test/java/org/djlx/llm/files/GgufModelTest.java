// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.files;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.FileTime;
import java.time.Duration;
import java.time.Instant;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.UUID;
import java.util.stream.Stream;
import org.djlx.llm.GeneratedPiece;
import org.djlx.llm.GenerationRequest;
import org.djlx.llm.engine.TextEngine;
import org.djlx.llm.model.ModelFixture;
import org.djlx.llm.model.ReferenceModels;
import org.djlx.nativeops.torch.ScalarType;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Models of GGUF files beside the same models of Hugging Face's files. */
class GgufModelTest {

    private static final int MUTATIONS = 5000;

    @TempDir private Path directory;

    @ParameterizedTest
    @ValueSource(
            strings = {
                "gemma",
                "gemma2",
                "gemma3",
                "granite",
                "llama-bias",
                "mistral",
                "mixtral",
                "olmo2",
                "phi3",
                "phi3-longrope",
                "qwen2",
                "qwen3",
                "qwen3-moe",
                "smollm3-every-fourth"
            })
    void generatesTheTokensOfHuggingFacesFiles(String name) throws Exception {
        Path original = Files.createDirectory(directory.resolve("original"));
        Path gguf = write(name, original);
        ModelFixture.Case of =
                isReference(name)
                        ? ReferenceModels.generate(ReferenceModels.read(original), 40, 8)
                        : ModelFixture.read(name).cases().get(0);
        List<GeneratedPiece> expected = generate(original, of, 1);
        for (int ranks = 1; ranks <= 2; ranks++) {
            List<GeneratedPiece> pieces = generate(gguf, of, ranks);
            for (int i = 0; i < expected.size(); i++) {
                assertEquals(expected.get(i).token(), pieces.get(i).token(), "token " + i);
                assertEquals(
                        expected.get(i).logProbability(), pieces.get(i).logProbability(), 1e-4);
            }
        }
    }

    private static boolean isReference(String name) {
        return ReferenceModels.names().contains(name);
    }

    @Test
    void modelInSeveralFilesIsThatInOne() throws Exception {
        Path original = Files.createDirectory(directory.resolve("original"));
        Path whole = write("llama-bias", original);
        Path parts = directory.resolve("parts");
        ModelFixture.Case of = ModelFixture.read("llama-bias").cases().get(0);
        Path first = parts.resolve("llama-bias-00001-of-00003.gguf");
        assertEquals("llama-bias", GgufDirectory.of(first).getFileName().toString());
        assertEquals(generate(whole, of, 1), generate(first, of, 1));
        assertEquals(GgufDirectory.of(first), GgufDirectory.of(parts));
        Path second = parts.resolve("llama-bias-00002-of-00003.gguf");
        String other = assertThrows(IOException.class, () -> GgufFile.read(second)).getMessage();
        assertTrue(other.contains("name the first, NAME-00001-of-00003.gguf"), other);
        Path third = parts.resolve("llama-bias-00003-of-00003.gguf");
        Files.copy(second, third, StandardCopyOption.REPLACE_EXISTING);
        String twice = assertThrows(IOException.class, () -> GgufFile.read(first)).getMessage();
        assertTrue(twice.contains(third + " has "), twice);
        Files.delete(third);
        String missing = assertThrows(IOException.class, () -> GgufFile.read(first)).toString();
        assertTrue(missing.contains(third.toString()), missing);
    }

    /** Writes a model, changed to what GGUF can say, and its GGUF file. */
    private Path write(String name, Path original) throws IOException {
        if (isReference(name)) {
            ReferenceModels.write(name, original);
        } else {
            ModelFixture.write(name, original, ScalarType.FLOAT32);
        }
        Path file = original.resolve("config.json");
        JsonObject config = JsonParser.parseString(Files.readString(file)).getAsJsonObject();
        if (name.matches("gemma[23]")) {
            config.addProperty("query_pre_attn_scalar", 16);
        } else if (!name.startsWith("phi3")) {
            config.remove("sliding_window");
            config.remove("layer_types");
        }
        if (name.equals("gemma3")) { // The last layer of a file has a window, too.
            config.remove("layer_types");
        }
        if (name.equals("qwen3-moe")) { // All layers of a file have experts.
            config = ModelFixture.config("qwen3-moe-unnormalized");
            config.addProperty("norm_topk_prob", true);
            config.addProperty("dtype", "float32");
            Files.delete(original.resolve("model.safetensors"));
            Files.delete(original.resolve("generation_config.json"));
            ModelFixture.write("qwen3-moe-unnormalized", original, ScalarType.FLOAT32);
        }
        Files.writeString(file, config.toString());
        GgufWriter writer = GgufWriter.of(original, config);
        writer.write(Files.createDirectory(directory.resolve("parts")), name, 3);
        return writer.write(directory.resolve(name + ".gguf"));
    }

    private static List<GeneratedPiece> generate(Path path, ModelFixture.Case of, int ranks)
            throws Exception {
        try (TextEngine generator =
                TextEngine.builder()
                        .setDirectory(path)
                        .optRanks(ranks)
                        .optMaxLength(of.length())
                        .build()) {
            return generator
                    .submit(
                            GenerationRequest.builder()
                                    .setPromptTokens(of.prompt())
                                    .optMaxTokens(of.tokens().length)
                                    .optIgnoreEndOfText(true)
                                    .build())
                    .await(Duration.ofMinutes(1));
        }
    }

    @Test
    void directoryIsWrittenOnceForAFileAndAnewWhenItChanges() throws Exception {
        Path file = write("llama-bias", Files.createDirectory(directory.resolve("original")));
        Path first = GgufDirectory.of(file);
        assertEquals(first, GgufDirectory.of(file));
        Files.setLastModifiedTime(file, FileTime.from(Instant.EPOCH));
        assertNotEquals(first, GgufDirectory.of(file));
    }

    @Test
    void refusedFileLeavesNoDirectory() throws Exception {
        String name = "refused-" + UUID.randomUUID();
        Path file = directory.resolve(name + ".gguf");
        Path original = Files.createDirectory(directory.resolve("original"));
        byte[] bytes = Files.readAllBytes(write("llama-bias", original));
        String text = new String(bytes, StandardCharsets.ISO_8859_1);
        text = text.replaceFirst("(?s)(general.architecture.{12})llama", "$1lemma");
        Files.write(file, text.getBytes(StandardCharsets.ISO_8859_1));
        assertThrows(IllegalArgumentException.class, () -> GgufDirectory.of(file));
        try (Stream<Path> temporary = Files.list(Path.of(System.getProperty("java.io.tmpdir")))) {
            assertTrue(temporary.noneMatch(each -> Files.exists(each.resolve(name))));
        }
    }

    /** A list that fits in the file, which is a sparse one, but hardly in memory. */
    @Test
    void listThatWouldFillTheHeapIsRefused() throws Exception {
        Path file = directory.resolve("large.gguf");
        ByteBuffer header = ByteBuffer.allocate(64).order(ByteOrder.LITTLE_ENDIAN);
        header.put("GGUF".getBytes(StandardCharsets.US_ASCII)).putInt(3).putLong(0).putLong(1);
        header.putLong(1).put((byte) 'k').putInt(9).putInt(0).putLong(1L << 30);
        try (FileChannel channel =
                FileChannel.open(file, StandardOpenOption.CREATE, StandardOpenOption.WRITE)) {
            channel.write(header.flip());
            channel.write(ByteBuffer.allocate(1), (1L << 31) - 1);
        }
        String message = assertThrows(IOException.class, () -> GgufFile.read(file)).getMessage();
        assertTrue(message.contains("large.gguf"), message);
        assertTrue(message.contains("1073741824 elements of an array"), message);
    }

    @Test
    void damagedFileIsNamed() throws Exception {
        Path original = Files.createDirectory(directory.resolve("original"));
        byte[] bytes = Files.readAllBytes(write("llama-bias", original));
        Path file = directory.resolve("damaged.gguf");
        Path out = Files.createDirectory(directory.resolve("out"));
        Random random = new Random(1);
        int header = 8192;
        int refused = 0;
        for (int i = 0; i < MUTATIONS; i++) {
            byte[] damaged = bytes.clone();
            int at = random.nextInt(header);
            if (i % 10 == 0) {
                damaged = Arrays.copyOf(damaged, random.nextInt(damaged.length));
            } else if (i % 10 < 5) {
                damaged[at] = (byte) random.nextInt();
            } else { // Sizes that are negative, or very large.
                Arrays.fill(
                        damaged, at, at + 1 + random.nextInt(8), (byte) (i % 2 == 0 ? 255 : 127));
            }
            Files.write(file, damaged);
            try {
                GgufFile read = GgufFile.read(file);
                GgufDirectory.write(read, out);
                GgufWeights.open(file).close();
            } catch (IOException | IllegalArgumentException e) {
                refused++;
                assertTrue(e.getMessage().contains("damaged.gguf"), e.toString());
            }
        }
        assertTrue(refused > MUTATIONS / 4, "only " + refused + " were refused");
    }
}
