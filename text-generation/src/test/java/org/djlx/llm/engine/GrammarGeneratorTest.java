// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.engine;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.engine.EngineException;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Collectors;
import org.djlx.llm.FinishReason;
import org.djlx.llm.GeneratedPiece;
import org.djlx.llm.Generation;
import org.djlx.llm.GenerationRequest;
import org.djlx.llm.model.LlamaReference;
import org.djlx.llm.sampling.Constraint;
import org.djlx.llm.sampling.Grammar;
import org.djlx.llm.sampling.Vocabulary;
import org.djlx.llm.text.ModelTokenizer;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Generation of texts that follow a grammar, on CPU ranks. */
@Timeout(120)
class GrammarGeneratorTest {

    private static final Duration LONG = Duration.ofSeconds(60);
    private static final Grammar SCHEMA =
            Grammar.jsonSchema(
                    JsonParser.parseString(
                                    "{\"properties\": {\"name\": {\"type\": \"string\","
                                            + " \"maxLength\": 5}, \"n\": {\"type\": \"integer\","
                                            + " \"minimum\": 0, \"maximum\": 99}}, \"required\":"
                                            + " [\"name\", \"n\"]}")
                            .getAsJsonObject());

    @TempDir private static Path directory;

    @BeforeAll
    static void write() throws IOException {
        ByteTokens.writeModel(directory, 3);
    }

    private static TextEngine generator(int ranks, long cacheBytes) throws IOException {
        return TextEngine.builder()
                .setDirectory(directory)
                .optRanks(ranks)
                .optCacheBytes(cacheBytes)
                .build();
    }

    private static GenerationRequest.Builder request(Grammar grammar, int seed) {
        return GenerationRequest.builder()
                .setPromptTokens(seed % 200, 3, 7)
                .optMaxTokens(100)
                .optTemperature(1.5)
                .optSeed(seed)
                .optGrammar(grammar);
    }

    private static String text(List<GeneratedPiece> pieces) {
        return pieces.stream().map(GeneratedPiece::text).collect(Collectors.joining());
    }

    /** Beside requests without a grammar. */
    @ParameterizedTest
    @ValueSource(ints = {1, 2})
    void textsFollowTheirGrammars(int ranks) throws Exception {
        try (TextEngine generator = generator(ranks, 0)) {
            List<Generation> constrained = new ArrayList<>();
            List<Generation> free = new ArrayList<>();
            for (int i = 0; i < 24; i++) {
                Grammar grammar = i % 2 == 0 ? SCHEMA : Grammar.regex("(?:ab|é){3,9}!");
                constrained.add(generator.submit(request(grammar, i).build()));
                free.add(generator.submit(request(null, i).optIgnoreEndOfText(true).build()));
            }
            for (int i = 0; i < constrained.size(); i++) {
                String text = text(constrained.get(i).await(LONG));
                assertEquals(FinishReason.STOP, constrained.get(i).finishReason().orElseThrow());
                if (i % 2 == 0) {
                    JsonObject json = JsonParser.parseString(text).getAsJsonObject();
                    assertEquals(List.of("name", "n"), List.copyOf(json.keySet()));
                    assertTrue(json.get("n").getAsInt() >= 0 && json.get("n").getAsInt() <= 99);
                } else {
                    assertTrue(text.matches("(?:ab|é){3,9}!"), text);
                }
                assertEquals(100, free.get(i).await(LONG).size());
            }
        }
    }

    /** Only after the first token a derivative is too deep for the stack. */
    @Test
    void aGrammarThatIsTooDeepFailsItsRequestOnly() throws Exception {
        try (TextEngine generator = generator(1, 0)) {
            Grammar deep = Grammar.regex("b" + "(a?)".repeat(3000) + "a{4000}");
            Generation failed = generator.submit(request(deep, 1).build());
            Exception e = assertThrows(EngineException.class, () -> failed.await(LONG));
            assertTrue(e.getMessage().contains("too many"), e::getMessage);
            Generation next = generator.submit(request(SCHEMA, 2).build());
            next.await(LONG);
            assertEquals(FinishReason.STOP, next.finishReason().orElseThrow());
        }
    }

    /** Greedy tokens are the most probable ones that are allowed, by a reference in float64. */
    @Test
    void greedyTokensAreTheMostProbableAllowedOnes() throws Exception {
        LlamaReference reference = new LlamaReference(directory);
        int[] prompt = {1, 3, 7};
        List<GeneratedPiece> pieces;
        try (TextEngine generator = generator(1, 0);
                ModelTokenizer tokenizer =
                        ModelTokenizer.read(directory.resolve("tokenizer.json"))) {
            GenerationRequest request =
                    request(SCHEMA, 0).setPromptTokens(prompt).optTemperature(0).build();
            pieces = generator.submit(request).await(LONG);
            Vocabulary vocabulary = new Vocabulary(tokenizer.tokenBytes(), ByteTokens.VOCABULARY);
            Constraint constraint = new Constraint(SCHEMA, vocabulary, ByteTokens.END);
            List<Integer> sequence = new ArrayList<>(List.of(1, 3, 7));
            for (GeneratedPiece piece : pieces) {
                int[] tokens = sequence.stream().mapToInt(Integer::intValue).toArray();
                double[] logits = reference.logits(tokens)[tokens.length - 1];
                int[] mask = constraint.mask();
                int best = -1;
                for (int token = 0; token < logits.length; token++) {
                    boolean isAllowed = (mask[token / 32] >>> token & 1) != 0;
                    if (isAllowed && (best < 0 || logits[token] > logits[best])) {
                        best = token;
                    }
                }
                assertEquals(best, piece.token());
                constraint.accept(best);
                sequence.add(best);
            }
            assertTrue(constraint.isComplete());
        }
        assertTrue(pieces.size() > 15, text(pieces));
    }

    @Test
    void tokensDoNotDependOnPreemption() throws Exception {
        List<String> texts = new ArrayList<>();
        long block = 0;
        try (TextEngine generator = generator(1, 0)) {
            var statistics = generator.statistics();
            block = statistics.cacheBytes() / statistics.cacheBlocks();
            for (int i = 0; i < 8; i++) {
                texts.add(text(generator.submit(request(SCHEMA, i).build()).await(LONG)));
            }
        }
        try (TextEngine generator = generator(1, 17 * block)) {
            List<Generation> all = new ArrayList<>();
            for (int i = 0; i < 8; i++) {
                all.add(generator.submit(request(SCHEMA, i).build()));
                all.add(generator.submit(request(null, i).optIgnoreEndOfText(true).build()));
            }
            for (int i = 0; i < 8; i++) {
                assertEquals(texts.get(i), text(all.get(2 * i).await(LONG)));
            }
            assertTrue(generator.statistics().preemptions() > 0);
        }
    }

    @Test
    void theEndTokenIsSampledOnlyWhereTheGrammarAllowsIt() throws Exception {
        try (TextEngine generator = generator(1, 0)) {
            int stops = 0;
            for (int seed = 0; seed < 20; seed++) {
                List<GeneratedPiece> pieces =
                        generator
                                .submit(request(Grammar.regex("a{2,30}"), seed).build())
                                .await(LONG);
                assertTrue(text(pieces).matches("a{2,30}"), text(pieces));
                stops += pieces.get(pieces.size() - 1).token() == ByteTokens.END ? 1 : 0;
            }
            assertTrue(stops > 5);
            // Without the token, only the complete text ends.
            GenerationRequest on =
                    request(Grammar.regex("a{2,30}"), 1).optIgnoreEndOfText(true).build();
            assertEquals("a".repeat(30), text(generator.submit(on).await(LONG)));
        }
    }

    @Test
    void optionsThatLeaveNoTokenFailOneRequest() throws Exception {
        try (TextEngine generator = generator(2, 0)) {
            Generation other = generator.submit(request(SCHEMA, 1).build());
            Generation wrong =
                    generator.submit(
                            request(Grammar.regex("abc"), 0)
                                    .optStopTokens('b')
                                    .optMinTokens(3)
                                    .build());
            EngineException e = assertThrows(EngineException.class, () -> wrong.await(LONG));
            assertTrue(e.getCause().getMessage().contains("no token continues"), e::toString);
            JsonParser.parseString(text(other.await(LONG)));
        }
    }

    @Test
    void tokenizersTellTheBytesOfTheirTokens() throws Exception {
        try (ModelTokenizer tokenizer = ModelTokenizer.read(directory.resolve("tokenizer.json"))) {
            List<byte[]> tokens = tokenizer.tokenBytes();
            assertEquals(258, tokens.size());
            for (int b = 0; b < 256; b++) {
                assertArrayEquals(new byte[] {(byte) b}, tokens.get(b));
            }
            assertEquals(null, tokens.get(ByteTokens.END));
            assertArrayEquals(
                    "é中".getBytes(StandardCharsets.UTF_8),
                    concat(tokens, tokenizer.encode("é中", false)));
        }
    }

    private static byte[] concat(List<byte[]> bytes, int[] tokens) {
        var all = new java.io.ByteArrayOutputStream();
        for (int token : tokens) {
            all.writeBytes(bytes.get(token));
        }
        return all.toByteArray();
    }
}
