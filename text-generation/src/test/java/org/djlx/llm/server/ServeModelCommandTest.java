// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.huggingface.tokenizers.Encoding;
import ai.djl.huggingface.tokenizers.HuggingFaceTokenizer;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.stream.Stream;
import org.djlx.collectives.safetensors.Safetensors;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.model.WeightMap;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

@Timeout(120)
class ServeModelCommandTest extends CommandTest {

    private static final Path TEXT = Path.of("..", "LICENSE");

    @TempDir private Path folder;

    private static String write(int code, Object... args) {
        List<Object> words = new ArrayList<>(List.of("serve-model"));
        words.addAll(List.of(args));
        return output(code, words.toArray());
    }

    @Test
    void writesAModelThatIsTheSameInEveryRun() throws IOException {
        Path first = folder.resolve("first");
        Path second = folder.resolve("second");
        String output = write(0, first);
        assertTrue(output.contains("a Llama of 426,624 parameters (1,706,496 bytes"), output);
        write(0, second);
        try (Stream<Path> files = Files.list(first)) {
            List<Path> all = files.sorted().toList();
            assertEquals(
                    List.of(
                            "config.json",
                            "generation_config.json",
                            "model.safetensors",
                            "serving.properties",
                            "tokenizer.json",
                            "tokenizer_config.json"),
                    all.stream().map(file -> file.getFileName().toString()).toList());
            for (Path file : all) {
                assertEquals(-1, Files.mismatch(file, second.resolve(file.getFileName())));
            }
        }
        JsonObject tokenizer =
                JsonParser.parseString(Files.readString(first.resolve("tokenizer.json")))
                        .getAsJsonObject();
        assertEquals( // the same order in every JVM
                "version added_tokens pre_tokenizer post_processor decoder model",
                String.join(" ", tokenizer.keySet()));
        ModelConfig config = ModelConfig.read(first);
        assertEquals(512, config.vocabularySize());
        assertEquals(List.of(508, 511), config.endTokens());
        try (Safetensors weights = Safetensors.open(first)) {
            assertEquals(
                    WeightMap.tensors(config).stream().map(TensorSpec::toString).toList(),
                    weights.specs().stream().map(TensorSpec::toString).toList());
        }
        Properties properties = new Properties();
        properties.load(Files.newBufferedReader(first.resolve("serving.properties")));
        assertEquals("2", properties.getProperty("option.tensor_parallel_degree"));
    }

    @Test
    void sizesAreThoseThatWereAskedFor() throws IOException {
        Path model = folder.resolve("model");
        write(
                0,
                model,
                "--hidden",
                64,
                "--intermediate",
                96,
                "--layers",
                3,
                "--heads",
                4,
                "--kv-heads",
                2,
                "--vocabulary",
                300,
                "--dtype",
                "bfloat16",
                "--tied",
                "--max-file-size",
                60_000,
                "--ranks",
                4,
                "--max-length",
                99);
        ModelConfig config = ModelConfig.read(model);
        assertEquals(16, config.headSize());
        assertEquals(3, config.layers());
        assertEquals(99, config.maxLength());
        assertTrue(config.tied());
        try (Safetensors weights = Safetensors.open(model)) {
            assertEquals(29, weights.specs().size());
            assertEquals(
                    "model.layers.2.self_attn.k_proj.weight BF16(32, 64)",
                    weights.spec("model.layers.2.self_attn.k_proj.weight").toString());
        }
        assertTrue(Files.exists(model.resolve("model.safetensors.index.json")));
    }

    @Test
    void theTokenizerIsOneOfHuggingFace() throws IOException {
        Path model = folder.resolve("model");
        write(0, model);
        String text = Files.readString(TEXT) + "\u00e9 \u4e16\u754c \ud83d\ude00\n\n  tail ";
        try (HuggingFaceTokenizer tokenizer =
                HuggingFaceTokenizer.builder()
                        .optTokenizerPath(model.resolve("tokenizer.json"))
                        .optTruncation(false) // DJL truncates to 512 tokens otherwise
                        .build()) {
            Encoding encoding = tokenizer.encode(text, true, false);
            long[] ids = encoding.getIds();
            assertEquals(507, ids[0], "the token that begins a text");
            assertEquals(text, tokenizer.decode(ids, true));
            assertArrayEquals(
                    new long[] {509, 510},
                    tokenizer
                            .encode("<|start_header_id|><|end_header_id|>", false, false)
                            .getIds());
        }
    }

    @Test
    void wrongArgumentsAreNamed() throws IOException {
        assertTrue(
                write(2, folder, "--heads", 3).contains("--heads 3 does not divide --hidden 128"));
        assertTrue(write(2, folder, "--vocabulary", 260).contains("must be 261 or more"));
        assertTrue(write(2, folder, "--ranks", 3).contains("cannot be divided among 3 ranks"));
        assertTrue(write(2, folder, "--max-file-size", 0).contains("--max-file-size"));
        try (Stream<Path> files = Files.list(folder)) {
            assertEquals(0, files.count());
        }
        Path file = folder.resolve("file");
        Files.createFile(file);
        assertTrue(
                write(1, file).contains(file + ": a file of that name exists; a folder is needed"));
    }

    @Test
    void helpNamesOneNumberOfRanksAndNoEmptyDefault() {
        String help = output(0, "serve", "--help");
        assertTrue(help.contains("[--ranks=N]") && !help.contains("N[,"), help);
        assertFalse(help.contains("Default: []"), help);
        String refused = output(2, "serve", folder, "--ranks", "1,2");
        assertTrue(refused.contains("--ranks takes one number, not 1,2"), refused);
    }
}
