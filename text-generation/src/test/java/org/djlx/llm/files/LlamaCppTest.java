// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.files;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.Gson;
import com.sun.jna.Function;
import com.sun.jna.Memory;
import com.sun.jna.NativeLibrary;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.djlx.llm.GeneratedPiece;
import org.djlx.llm.Generation;
import org.djlx.llm.GenerationRequest;
import org.djlx.llm.engine.TextEngine;
import org.djlx.llm.model.LlamaConfig;
import org.djlx.llm.model.ModelConfig;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/**
 * One small random model in a GGUF file of each type, quantized by llama.cpp's own library, which
 * npm's node-llama-cpp has, beside the answers of llama.cpp: {@code mvn -Pclients test}.
 */
@Timeout(600)
@Tag("clients")
class LlamaCppTest {

    private static final Path INSTALLED = Path.of("target", "llama-cpp");
    private static final int TOKENS = 32;
    private static final int VOCABULARY = 203;

    @TempDir private static Path folder;
    private static GgufWriter exact;
    private static final int[] PROMPT =
            IntStream.range(0, 40).map(i -> (37 * i + 11) % 96).toArray();

    /** What a program answers. */
    private record Answer(int[] tokens, double[] logProbabilities) {}

    @BeforeAll
    static void install() throws Exception {
        Files.createDirectories(INSTALLED);
        for (Path file :
                List.of(
                        Path.of("src", "test", "peer", "llama_cpp.mjs"),
                        Path.of("..", "ci", "bench", "peers", "package.json"))) {
            Files.writeString(INSTALLED.resolve(file.getFileName()), Files.readString(file));
        }
        String options = "--no-audit --no-fund --ignore-scripts --prefer-offline --silent";
        run(null, ("npm install " + options).split(" "));
        ModelConfig config =
                LlamaConfig.builder()
                        .vocabulary(VOCABULARY)
                        .hidden(256)
                        .heads(4, 2, 64)
                        .maxLength(256)
                        .endTokens(VOCABULARY - 1)
                        .layers(2, 512)
                        .build();
        exact = GgufWriter.random(folder.resolve("original"), config);
    }

    private static String run(String input, String... command) throws Exception {
        Path log = INSTALLED.resolve(command[0] + ".log");
        Process process =
                new ProcessBuilder(command)
                        .directory(INSTALLED.toFile())
                        .redirectError(log.toFile())
                        .start();
        try (var to = process.outputWriter()) {
            to.write(input == null ? "" : input);
        }
        String output = new String(process.getInputStream().readAllBytes());
        assertTrue(process.waitFor(5, TimeUnit.MINUTES), () -> command[0] + " does not end");
        assertEquals(0, process.exitValue(), output + Files.readString(log));
        return output;
    }

    /** Rounds numbers to a type by llama.cpp's library. */
    private static byte[] quantize(GgufType type, byte[] numbers, long columns) {
        Path library;
        try (Stream<Path> files = Files.walk(INSTALLED.resolve("node_modules"))) {
            library =
                    files.filter(file -> file.endsWith("linux-x64/libggml-base.so"))
                            .findFirst()
                            .orElseThrow();
        } catch (IOException e) {
            throw new IllegalStateException(e);
        }
        Function quantize =
                NativeLibrary.getInstance(library.toAbsolutePath().toString())
                        .getFunction("ggml_quantize_chunk");
        long count = numbers.length / Float.BYTES;
        Memory from = new Memory(numbers.length);
        from.write(0, numbers, 0, numbers.length);
        Memory to = new Memory(count / type.blockSize * type.blockBytes);
        Object[] arguments = {type.code, from, to, 0L, count / columns, columns, null};
        long written = (Long) quantize.invoke(Long.class, arguments);
        assertEquals(to.size(), written);
        return to.getByteArray(0, (int) written);
    }

    private static byte[] dequantized(GgufType type, byte[] blocks) {
        float[] numbers = new float[blocks.length / type.blockBytes * type.blockSize];
        type.dequantize(
                ByteBuffer.wrap(blocks).order(ByteOrder.LITTLE_ENDIAN),
                0,
                numbers.length,
                numbers,
                0);
        return GgufWriter.floats(numbers);
    }

    /** Answers greedily. */
    private static Answer answer(Path file) throws Exception {
        try (TextEngine generator = TextEngine.builder().setDirectory(file).build()) {
            List<GeneratedPiece> pieces =
                    generator
                            .submit(request(PROMPT).optMaxTokens(TOKENS).build())
                            .await(Duration.ofMinutes(1));
            int[] tokens = pieces.stream().mapToInt(GeneratedPiece::token).toArray();
            return new Answer(tokens, of(pieces));
        }
    }

    /** Returns the log probabilities of tokens after the prompt. */
    private static double[] score(Path file, int[] tokens, int ranks) throws Exception {
        int[] all = IntStream.concat(IntStream.of(PROMPT), IntStream.of(tokens)).toArray();
        GenerationRequest request = request(all).optPromptLogProbabilities(true).build();
        try (TextEngine generator =
                TextEngine.builder().setDirectory(file).optRanks(ranks).build()) {
            Generation generation = generator.submit(request);
            generation.await(Duration.ofMinutes(1));
            return of(generation.promptPieces().subList(PROMPT.length, all.length));
        }
    }

    private static GenerationRequest.Builder request(int[] prompt) {
        return GenerationRequest.builder()
                .setPromptTokens(prompt)
                .optMaxTokens(1)
                .optIgnoreEndOfText(true);
    }

    private static double[] of(List<GeneratedPiece> pieces) {
        return pieces.stream().mapToDouble(GeneratedPiece::logProbability).toArray();
    }

    private static double error(double[] exact, double[] rounded, int count) {
        return Math.sqrt(
                IntStream.range(0, count)
                        .mapToDouble(i -> Math.pow(rounded[i] - exact[i], 2))
                        .average()
                        .orElse(0));
    }

    /**
     * In float32 and float16 the tokens are equal. For other types both programs round activations;
     * our log probabilities, of 1 and 2 ranks, are as near to those of the dequantized weights as
     * llama.cpp's.
     */
    @Test
    void filesOfAllTypesAreAnsweredAsByLlamaCpp() throws Exception {
        Path directory = Files.createDirectory(folder.resolve("files"));
        List<Path> files = new ArrayList<>();
        for (GgufType type : GgufType.values()) {
            files.add(
                    exact.converted(type.code, (rows, columns) -> quantize(type, rows, columns))
                            .write(directory.resolve(type + ".gguf")));
        }
        List<String> command = new ArrayList<>(List.of("node", "llama_cpp.mjs"));
        files.forEach(file -> command.add(file.toString()));
        Gson gson = new Gson();
        String request = gson.toJson(Map.of("prompt", PROMPT, "tokens", TOKENS));
        String[] lines = run(request, command.toArray(String[]::new)).split("\n");
        for (GgufType type : GgufType.values()) {
            Path file = files.get(type.ordinal());
            Answer expected = gson.fromJson(lines[type.ordinal()], Answer.class);
            Answer ours = answer(file);
            int equal =
                    (int)
                            IntStream.range(0, TOKENS)
                                    .takeWhile(i -> expected.tokens[i] == ours.tokens[i])
                                    .count();
            GgufWriter wide =
                    exact.converted(
                            GgufType.F32.code,
                            (rows, columns) -> dequantized(type, quantize(type, rows, columns)));
            double[] exact = score(wide.write(folder.resolve("wide.gguf")), expected.tokens, 1);
            double theirs = error(exact, expected.logProbabilities, TOKENS);
            double decoded = error(exact, ours.logProbabilities, equal);
            double scored = error(exact, score(file, expected.tokens, 1), TOKENS);
            double divided = error(exact, score(file, expected.tokens, 2), TOKENS);
            String result =
                    String.format(
                            "%s: %d tokens equal; errors: theirs %.2g, decoded %.2g, scored %.2g"
                                    + " and %.2g",
                            type, equal, theirs, decoded, scored, divided);
            System.out.println(result);
            if (type == GgufType.F32 || type == GgufType.F16) {
                assertEquals(TOKENS, equal, result);
            }
            double most = type == GgufType.F32 ? 1e-4 : 1.5 * theirs;
            assertTrue(
                    theirs < 0.1 && scored < most && divided < most && decoded < 2 * most, result);
        }
    }
}
