// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.generate;

import static org.djlx.collectives.launch.cli.UsageException.parsed;
import static org.djlx.collectives.launch.cli.UsageException.refuseIf;

import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.TimeoutException;
import org.djlx.collectives.launch.cli.CliCommand;
import org.djlx.llm.FinishReason;
import org.djlx.llm.GeneratedPiece;
import org.djlx.llm.Generation;
import org.djlx.llm.GenerationRequest;
import org.djlx.llm.engine.TextEngine;
import org.djlx.llm.server.ModelOptions;
import picocli.CommandLine.Command;
import picocli.CommandLine.Help.Visibility;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;
import picocli.CommandLine.Parameters;

/** {@code generate}: continues a prompt with a model. */
@Command(
        name = "generate",
        description = {
            "Continues a prompt with a language model on one rank or several, and prints the"
                    + " speed. Takes the most probable token unless --temperature is given."
        })
public final class GenerateCommand extends CliCommand {

    private static final Duration PATIENCE = Duration.ofMinutes(10);

    @Parameters(paramLabel = "MODEL", description = ModelOptions.MODEL)
    private String modelId;

    @Mixin private ModelOptions model;

    @Option(names = "--prompt", required = true, paramLabel = "TEXT", description = "The prompt.")
    private String prompt;

    @Option(names = "--max-tokens", description = "Maximum number of tokens to generate.")
    private int maxTokens = 128;

    @Option(
            names = "--temperature",
            paramLabel = "T",
            defaultValue = "0",
            description =
                    "Sampling temperature, which divides the logits; 0 takes the most probable"
                            + " token.")
    private double temperature;

    @Option(
            names = "--top-k",
            paramLabel = "K",
            defaultValue = "0",
            description = "Samples among the K most probable tokens; 0 for all.")
    private int topK;

    @Option(
            names = "--top-p",
            paramLabel = "P",
            defaultValue = "1",
            description = "Samples among the most probable tokens whose probabilities add up to P.")
    private double topP;

    @Option(
            names = "--repetition-penalty",
            paramLabel = "R",
            defaultValue = "1",
            description = "Lowers the logits of tokens that the text already has.")
    private double repetitionPenalty;

    @Option(names = "--seed", description = "Seed of the sampler.")
    private Long seed;

    @Option(
            names = "--stop",
            paramLabel = "TEXT",
            description = "Stops at this text; may be repeated.",
            showDefaultValue = Visibility.NEVER)
    private List<String> stops = List.of();

    @Option(names = "--ignore-eos", description = "Goes on after an end-of-text token.")
    private boolean ignoreEnd;

    @Override
    public Integer call() throws IOException, InterruptedException, TimeoutException {
        GenerationRequest request = request();
        model.check();
        Path directory = model.directory(modelId);
        model.requireTokenizer(directory);
        model.requireRoom(directory, maxTokens);
        try (TextEngine generator = model.load(directory, builder -> builder)) {
            if (generator.isFollower()) {
                generator.awaitEnd();
                return 0;
            }
            long start = System.nanoTime();
            write(parsed(() -> generator.submit(request)), start);
        }
        return 0;
    }

    private GenerationRequest request() {
        GenerationRequest.Builder builder =
                GenerationRequest.builder()
                        .setPrompt(prompt)
                        .optMaxTokens(maxTokens)
                        .optTemperature(temperature)
                        .optTopK(topK)
                        .optTopP(topP)
                        .optRepetitionPenalty(repetitionPenalty)
                        .optStopStrings(stops)
                        .optIgnoreEndOfText(ignoreEnd);
        if (seed != null) {
            builder.optSeed(seed);
        }
        GenerationRequest request = parsed(builder::build);
        refuseIf(
                temperature == 0 && (topK != 0 || topP != 1 || seed != null),
                "--top-k, --top-p and --seed take a --temperature above 0: without it, nothing is"
                        + " sampled");
        return request;
    }

    private void write(Generation generation, long start)
            throws InterruptedException, TimeoutException {
        print("%s", prompt);
        long first = start;
        GeneratedPiece piece = generation.next(PATIENCE);
        if (piece != null) {
            first = System.nanoTime();
        }
        for (; piece != null; piece = generation.next(PATIENCE)) {
            print("%s", piece.text());
        }
        long end = System.nanoTime();
        int tokens = generation.generatedTokens();
        print("%n%n%s%n", summary(generation, tokens, first - start, end - first));
    }

    private static String summary(
            Generation generation, int tokens, long firstNanos, long otherNanos) {
        // The time to the first token is the time of the prefill.
        String speed =
                tokens < 2
                        ? ""
                        : String.format(", then %.1f tokens/s", (tokens - 1) * 1e9 / otherNanos);
        boolean stopped = generation.finishReason().orElseThrow() != FinishReason.LENGTH;
        return String.format(
                "%d %s after a prompt of %d%s: the first in %.0f ms%s",
                tokens,
                tokens == 1 ? "token" : "tokens",
                generation.promptTokens(),
                stopped ? ", to the end of the text" : "",
                firstNanos / 1e6,
                speed);
    }
}
