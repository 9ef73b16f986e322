// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.modality.Input;
import ai.djl.modality.Output;
import ai.djl.repository.zoo.Criteria;
import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.List;
import java.util.stream.Stream;
import org.djlx.llm.engine.ByteTokens;
import org.djlx.llm.engine.TextEngine;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** Model directories that cannot be loaded: what is said of them, and that nothing is left. */
@Timeout(60)
class LlamaWrongFilesTest {

    private static final String CONFIG = "config.json";
    private static final String INDEX = "model.safetensors.index.json";
    private static final String SHARD = "model-00002-of-00005.safetensors";
    private static final String ABSENT = "model-00009-of-00005.safetensors";

    @TempDir private Path directory;

    /**
     * A directory that is wrong.
     *
     * @param change what is done to one that is not
     * @param said what is to be said of it: the file, the problem, what to do
     */
    private record Wrong(String name, Change change, List<String> said) {

        Wrong(String name, Change change, String... said) {
            this(name, change, List.of(said));
        }

        @Override
        public String toString() {
            return name;
        }
    }

    /** What is done to a directory. */
    private interface Change {
        void make(Path directory) throws IOException;
    }

    private static Change without(String file) {
        return directory -> Files.delete(directory.resolve(file));
    }

    private static Change cutOff(String file, int bytes) {
        return directory -> {
            try (FileChannel channel =
                    FileChannel.open(directory.resolve(file), StandardOpenOption.WRITE)) {
                assertTrue(channel.size() > bytes);
                channel.truncate(bytes);
            }
        };
    }

    private static Change replace(String file, String text, String with) {
        return directory -> {
            Path path = directory.resolve(file);
            String before = Files.readString(path);
            String after = before.replace(text, with);
            assertNotEquals(before, after);
            Files.writeString(path, after);
        };
    }

    static Stream<Wrong> wrongs() {
        String absent = "\"" + ABSENT + "\"";
        return Stream.of(
                new Wrong(
                        "data that are cut off",
                        cutOff(SHARD, 20_000),
                        SHARD,
                        "it is cut off: ",
                        "fetch or write it again"),
                new Wrong("a header that is cut off", cutOff(SHARD, 50), SHARD, "it is cut off: "),
                new Wrong("an empty file", cutOff(SHARD, 0), SHARD, "it has only 0 bytes"),
                new Wrong(
                        "a missing file",
                        without(SHARD),
                        SHARD,
                        INDEX + " lists it",
                        "download it"),
                new Wrong(
                        "an index of an absent file",
                        replace(INDEX, "\"" + SHARD + "\"", absent),
                        ABSENT,
                        INDEX + " lists it",
                        "download it"),
                new Wrong("a missing index", without(INDEX), "has neither " + INDEX + " nor "),
                new Wrong(
                        "an index that is cut off",
                        cutOff(INDEX, 60),
                        INDEX,
                        "not JSON",
                        "fetch or"),
                new Wrong(
                        "a shape that config.json has not",
                        replace(CONFIG, "\"intermediate_size\":48", "\"intermediate_size\":64"),
                        "'model.layers.0.mlp.gate_proj.weight'",
                        ".safetensors has the shape (48, 40)",
                        "config.json requires (64, 40)",
                        "take weights and config.json from the same model"),
                new Wrong(
                        "a tensor that is missing",
                        replace(CONFIG, "\"tie_word_embeddings\":true", "\"other\":1"),
                        "no tensor 'lm_head.weight' of shape (258, 40)",
                        "take weights and config.json from the same model"),
                new Wrong(
                        "a type that cannot be computed with",
                        replaceInHeader("F32", "I32"),
                        SHARD,
                        "has type INT32; supported are ",
                        "convert the file"),
                new Wrong(
                        "a missing config.json",
                        without(CONFIG),
                        CONFIG,
                        "no such file",
                        "download it"),
                new Wrong(
                        "a config.json that lacks an entry",
                        replace(CONFIG, "\"hidden_size\":40,", ""),
                        CONFIG,
                        "hidden_size is missing"),
                new Wrong(
                        "a config.json that is cut off",
                        cutOff(CONFIG, 50),
                        CONFIG,
                        "not JSON",
                        "download it again"),
                new Wrong(
                        "a type that config.json should not have",
                        replace(CONFIG, "\"torch_dtype\":\"float32\"", "\"torch_dtype\":\"int8\""),
                        CONFIG,
                        "torch_dtype must be float32, float16 or bfloat16"),
                new Wrong(
                        "a tokenizer that is cut off",
                        cutOff("tokenizer.json", 50),
                        "tokenizer.json",
                        "is not a valid tokenizer"));
    }

    /** Replaces a text of the header of a file by one that is as long. */
    private static Change replaceInHeader(String text, String with) {
        return directory -> {
            Path path = directory.resolve(SHARD);
            String before = Files.readString(path, StandardCharsets.ISO_8859_1);
            String after = before.replaceFirst("\"" + text + "\"", "\"" + with + "\"");
            assertNotEquals(before, after);
            Files.writeString(path, after, StandardCharsets.ISO_8859_1);
        };
    }

    @BeforeEach
    void write() throws IOException {
        ByteTokens.writeModel(directory, 3);
        Files.writeString(
                directory.resolve("serving.properties"),
                "engine=PyTorch-P2P\noption.tensor_parallel_degree=2\n");
    }

    @ParameterizedTest
    @MethodSource("wrongs")
    void namesWrongFilesAndLeavesNothing(Wrong wrong) throws Exception {
        wrong.change.make(directory);
        refuse(
                wrong,
                () -> TextEngine.builder().setDirectory(directory).optRanks(2).build().close());
        Criteria<Input, Output> criteria =
                Criteria.builder()
                        .setTypes(Input.class, Output.class)
                        .optModelPath(directory)
                        .build();
        refuse(wrong, () -> criteria.loadModel().close());
    }

    private void refuse(Wrong wrong, Executable load) throws IOException {
        long processes = ProcessHandle.current().descendants().count();
        Exception failure = assertThrows(Exception.class, load);
        String message = failure.getMessage();
        assertTrue(message.contains(directory.toString()), message);
        wrong.said.forEach(text -> assertTrue(message.contains(text), message));
        String name = directory.getFileName().toString();
        for (Thread thread : Thread.getAllStackTraces().keySet()) {
            if (thread.getName().contains(name)) {
                // Its work is over, but it may still be ending.
                assertDoesNotThrow(() -> thread.join(10_000));
                assertFalse(thread.isAlive(), thread::getName);
            }
        }
        assertEquals(processes, ProcessHandle.current().descendants().count());
        assertFalse(Files.readString(Path.of("/proc/self/maps")).contains(name), "is mapped");
        try (Stream<Path> files = Files.list(Path.of("/proc/self/fd"))) {
            for (Path file : files.filter(Files::isSymbolicLink).toList()) {
                assertFalse(target(file).contains(name), "is open");
            }
        }
    }

    private static String target(Path descriptor) {
        try {
            return Files.readSymbolicLink(descriptor).toString();
        } catch (IOException e) {
            return ""; // It has been closed since.
        }
    }
}
