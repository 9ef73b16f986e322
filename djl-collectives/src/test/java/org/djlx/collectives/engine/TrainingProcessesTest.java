/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.engine;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.TrainingConfig;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.djlx.collectives.RankProcesses;
import org.djlx.collectives.engine.Training.Outcome;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** The same program in two processes, and in one with DJL's engine and the whole batches. */
class TrainingProcessesTest {

    private static final float TOLERANCE = 2e-5f;

    @ParameterizedTest
    @ValueSource(strings = {"sgd", "adam"})
    @Timeout(300)
    void trainAsOneProcess(String optimizer, @TempDir Path directory) throws Exception {
        TrainingConfig config =
                new DefaultTrainingConfig(Training.loss())
                        .optOptimizer(Training.optimizer(optimizer));
        Outcome expected =
                Training.fit(
                        "PyTorch",
                        config,
                        Training.block(),
                        32,
                        DistributedSampler.builder().setBatchSize(8).optSeed(3).build(),
                        3,
                        5,
                        trainer -> {});
        try (RankProcesses processes =
                new RankProcesses(2, TrainingMain.class, optimizer, directory.toString())) {
            processes.awaitSuccess();
            List<List<String>> outputs =
                    List.of(
                            processes.output(0).lines().toList(),
                            processes.output(1).lines().toList());
            float[] first = losses(outputs.get(0));
            float[] second = losses(outputs.get(1));
            assertEquals(expected.losses().size(), first.length);
            for (int i = 0; i < first.length; i++) {
                assertEquals(
                        expected.losses().get(i),
                        (first[i] + second[i]) / 2,
                        TOLERANCE,
                        "batch " + i);
            }
            List<String> parameters = parameters(outputs.get(0));
            assertEquals(parameters, parameters(outputs.get(1)));
            for (int i = 0; i < parameters.size(); i++) {
                assertArrayEquals(
                        expected.parameters().get(i), numbers(parameters.get(i)), TOLERANCE);
            }
        }
        // Only the first saves.
        assertTrue(Files.exists(directory.resolve("rank0").resolve("classifier-0000.params")));
        assertFalse(Files.exists(directory.resolve("rank1")));
    }

    private static float[] losses(List<String> output) {
        return numbers(
                output.stream()
                        .filter(line -> line.startsWith("loss "))
                        .map(line -> line.substring("loss ".length()))
                        .toList()
                        .toString());
    }

    private static List<String> parameters(List<String> output) {
        return output.stream()
                .filter(line -> line.startsWith("parameter "))
                .map(line -> line.substring("parameter ".length()))
                .toList();
    }

    private static float[] numbers(String list) {
        String[] words = list.substring(1, list.length() - 1).split(", ");
        float[] numbers = new float[words.length];
        for (int i = 0; i < words.length; i++) {
            numbers[i] = Float.parseFloat(words[i]);
        }
        return numbers;
    }
}
