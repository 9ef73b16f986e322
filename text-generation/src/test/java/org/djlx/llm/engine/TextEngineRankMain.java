// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.engine;

import ai.djl.engine.EngineException;
import ai.djl.inference.Predictor;
import ai.djl.modality.Input;
import ai.djl.modality.Output;
import ai.djl.ndarray.BytesSupplier;
import ai.djl.repository.zoo.Criteria;
import ai.djl.repository.zoo.ZooModel;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.llm.GeneratedPiece;
import org.djlx.llm.Generation;
import org.djlx.llm.TextGenerator;

/**
 * A rank of a Llama whose ranks are processes, for {@link TextEngineProcessesTest}. The first
 * argument is its scenario, the second the model's directory.
 */
public final class TextEngineRankMain {

    private static final Duration TIMEOUT = Duration.ofSeconds(6);
    private static final Duration LONG = Duration.ofSeconds(60);

    private TextEngineRankMain() {}

    private static void say(String text) {
        System.out.println(text);
        System.out.flush();
    }

    /** Runs this rank. */
    public static void main(String[] args) throws Exception {
        Path directory = Path.of(args[1]);
        if (args[0].equals("load")) {
            load(directory);
            return;
        }
        ProcessGroup group = ProcessGroups.init("shm").withTimeout(TIMEOUT);
        if (args[0].equals("cut off") && group.rank() == 1) {
            directory = directory.resolve("cut-off");
        }
        int length = args[0].equals("differ") ? 100 + group.rank() : 256;
        int running = args[0].equals("differ in running") ? 5 + group.rank() : 5;
        try (TextEngine generator =
                TextEngine.builder()
                        .setDirectory(directory)
                        .optProcessGroup(group)
                        .optMaxLength(length)
                        .optMaxRunning(running)
                        .optPrefillTokens(33)
                        .build()) {
            if (generator.isFollower()) {
                sayRefused(generator);
                generator.awaitEnd();
            } else if (args[0].equals("serve")) {
                serve(generator, directory.resolve("adapter"));
            } else {
                serveUntilItFails(generator);
            }
        }
        say("ended");
    }

    private static void sayRefused(TextGenerator generator) {
        try {
            generator.submit(TextEngineTest.request(1).build());
        } catch (IllegalStateException e) {
            say("refused: " + e.getMessage());
        }
    }

    private static void serve(TextGenerator generator, Path adapter) throws Exception {
        List<Generation> all =
                TextEngineTest.manyRequests().stream().map(generator::submit).toList();
        Generation cancelled =
                generator.submit(TextEngineTest.request(1, 2).optMaxTokens(250).build());
        try {
            generator.submit(TextEngineTest.request(1, 2).optMaxTokens(1000).build());
        } catch (IllegalArgumentException e) {
            say("wrong: " + e.getMessage());
        }
        for (Generation generation : all) {
            say("tokens " + tokens(generation));
        }
        cancelled.next(LONG);
        cancelled.cancel();
        say("cancelled: " + cancelled.finishReason().orElseThrow());
        Thread.sleep(
                TIMEOUT.plusSeconds(1)
                        .toMillis()); // Idle for longer than ranks wait for each other.
        Generation late = generator.submit(TextEngineTest.manyRequests().get(0));
        say("late " + tokens(late));
        generator.loadAdapter("a", adapter);
        say("adapted " + tokens(generator.submit(TextEngineTest.adapted())));
        generator.unloadAdapter("a");
        while (generator.statistics().cacheBlocksInUse() > 0) {
            Thread.sleep(5); // A generation has ended for its caller before.
        }
    }

    private static String tokens(Generation generation) throws Exception {
        return Arrays.toString(
                generation.await(LONG).stream().mapToInt(GeneratedPiece::token).toArray());
    }

    private static void serveUntilItFails(TextGenerator generator) throws Exception {
        try {
            while (true) {
                Generation running =
                        generator.submit(TextEngineTest.request(1).optMaxTokens(200).build());
                running.next(LONG);
                say("running");
                running.await(LONG);
            }
        } catch (EngineException e) {
            say("failed: " + e.getMessage());
        }
        while (generator.unavailabilityCause().isEmpty()) {
            Thread.sleep(5); // The request fails before.
        }
        say("unavailable: " + generator.unavailabilityCause().orElseThrow());
        sayRefused(generator);
    }

    private static void load(Path directory) throws Exception {
        Criteria<Input, Output> criteria =
                Criteria.builder()
                        .setTypes(Input.class, Output.class)
                        .optModelPath(directory)
                        .optEngine("PyTorch-P2P")
                        .build();
        try (ZooModel<Input, Output> model = criteria.loadModel();
                Predictor<Input, Output> predictor = model.newPredictor()) {
            Input input = new Input();
            String json = "{\"inputs\": \"How?\", \"parameters\": {\"max_new_tokens\": 5}}";
            input.add(BytesSupplier.wrap(json));
            Output output = predictor.predict(input);
            say(output.getCode() + " " + output.getData().getAsString());
        }
        say("ended");
    }
}
