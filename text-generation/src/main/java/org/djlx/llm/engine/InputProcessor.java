// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.engine;

import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashSet;
import java.util.Set;
import java.util.function.Supplier;
import java.util.function.ToIntFunction;
import org.djlx.llm.GenerationRequest;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.sampling.Constraint;
import org.djlx.llm.sampling.Vocabulary;
import org.djlx.llm.text.ContextLengthException;
import org.djlx.llm.text.TextTokenizer;

/**
 * Checks requests and tokenizes their prompts. Thread-safe.
 *
 * @param directory the model directory, for messages
 * @param tokenizer null if the model has none
 * @param vocabulary the bytes of the tokens, read when they are first needed; throws an
 *     IllegalArgumentException if the tokenizer does not tell them
 * @param adapters the ids of adapters by their names; throws an IllegalArgumentException if there
 *     is none of this name
 */
record InputProcessor(
        Path directory,
        ModelConfig config,
        int maxLength,
        TextTokenizer tokenizer,
        Supplier<Vocabulary> vocabulary,
        ToIntFunction<String> adapters) {

    /**
     * Creates the sequence of a request; throws an IllegalArgumentException if the model cannot
     * serve it. {@code onCancel} runs when the caller cancels the generation.
     */
    Sequence sequence(GenerationRequest request, Runnable onCancel) {
        check(request != null, "it is null");
        int[] prompt = request.promptTokens().orElseGet(() -> encode(request));
        check(prompt.length > 0, "the prompt has no tokens");
        checkTokens("of the prompt", prompt);
        checkTokens("of stopTokens", request.stopTokens());
        checkTokens(
                "of logitBias",
                request.logitBias().keySet().stream().mapToInt(Integer::intValue).toArray());
        if (prompt.length > maxLength - request.maxTokens()) {
            throw new ContextLengthException(prompt.length, request.maxTokens(), maxLength);
        }
        check(
                tokenizer != null || request.stopStrings().isEmpty(),
                "stopStrings requires a tokenizer, and %s has no tokenizer.json",
                directory);
        check(
                tokenizer != null || request.grammar().isEmpty(),
                "a grammar requires a tokenizer, and %s has no tokenizer.json",
                directory);
        Set<Integer> stops = new HashSet<>();
        if (!request.ignoresEndOfText()) {
            stops.addAll(config.endTokens());
        }
        Arrays.stream(request.stopTokens()).forEach(stops::add);
        PieceQueue queue = new PieceQueue(prompt.length, onCancel);
        int adapter = request.adapter().map(adapters::applyAsInt).orElse(0);
        Sequence sequence = new Sequence(request, prompt, tokenizer, stops, adapter, queue);
        int[] ends = stops.stream().mapToInt(Integer::intValue).toArray();
        request.grammar()
                .ifPresent(
                        grammar ->
                                sequence.sampler.follow(
                                        new Constraint(grammar, vocabulary.get(), ends)));
        return sequence;
    }

    private int[] encode(GenerationRequest request) {
        check(
                tokenizer != null,
                "a text prompt requires a tokenizer, and %s has no tokenizer.json; set the prompt"
                        + " by its tokens",
                directory);
        String prompt = request.prompt().orElseThrow();
        ContextLengthException.check(prompt, tokenizer, maxLength);
        return tokenizer.encode(prompt, true);
    }

    private void checkTokens(String which, int[] tokens) {
        for (int token : tokens) {
            check(
                    token >= 0 && token < config.vocabularySize(),
                    "token id %d %s is out of range: the vocabulary has %d tokens",
                    token,
                    which,
                    config.vocabularySize());
        }
    }

    static void check(boolean condition, String problem, Object... values) {
        if (!condition) {
            throw new IllegalArgumentException(
                    "generation request: " + String.format(problem, values));
        }
    }
}
