// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.TrainingConfig;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.stream.IntStream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.RankProcesses;
import org.djlx.training.Training.Outcome;
import org.djlx.training.data.DistributedSampler;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** The same program in several processes, and in one with DJL's engine and the whole batches. */
@Tag("slow")
class TrainingProcessesTest {

    static final float TOLERANCE = 2e-5f;

    @ParameterizedTest
    @CsvSource({"sgd, 2", "sgd, 4", "sgd, 8", "adam, 2", "adam, 4", "adam, 8"})
    @Timeout(300)
    void processesTrainAsOne(String optimizer, int ranks, @TempDir Path directory)
            throws Exception {
        Outcome expected = onOne(optimizer, Device.cpu());
        try (RankProcesses processes =
                new RankProcesses(ranks, TrainingMain.class, optimizer, directory.toString())) {
            assertTrainAsOne(processes, ranks, expected);
        }
        // Only the first saves.
        assertTrue(Files.exists(directory.resolve("rank0").resolve("classifier-0000.params")));
        assertFalse(Files.exists(directory.resolve("rank1")));
    }

    /** Each rank is a group of hybrid sharding. */
    @Test
    @Timeout(300)
    void hybridProcessesTrainAsOne(@TempDir Path directory) throws Exception {
        Outcome expected = onOne("adam", Device.cpu());
        try (RankProcesses processes =
                new RankProcesses(
                        2, TrainingMain.class, "adam", directory.toString(), "shm", "hybrid")) {
            assertTrainAsOne(processes, 2, expected);
        }
    }

    /** Programs that keep DJL's engine, each with other weights at the start. */
    @ParameterizedTest
    @CsvSource({"sgd, 2", "adam, 2"})
    @Timeout(300)
    void synchronizerTrainsProcessesAsOne(String optimizer, int ranks) throws Exception {
        Outcome expected = onOne(optimizer, Device.cpu());
        try (RankProcesses processes =
                new RankProcesses(
                        ranks, TrainingMain.class, optimizer, "", TrainingMain.LISTENER)) {
            assertTrainAsOne(processes, ranks, expected);
        }
    }

    /** Trains with DJL's engine on one device. */
    static Outcome onOne(String optimizer, Device device) throws Exception {
        TrainingConfig config =
                new DefaultTrainingConfig(Training.loss())
                        .optDevices(new Device[] {device})
                        .optOptimizer(Training.optimizer(optimizer));
        // A group of one: this process may be a rank of a job, which the sampler would see.
        try (ProcessGroup one = ProcessGroups.local(1).get(0)) {
            return Training.fit(
                    "PyTorch",
                    config,
                    Training.block(),
                    32,
                    DistributedSampler.builder().setBatchSize(8).optSeed(3).optGroup(one).build(),
                    3,
                    5,
                    trainer -> {});
        }
    }

    /** Waits for processes that run {@link TrainingMain}, and compares what they print. */
    static void assertTrainAsOne(RankProcesses processes, int ranks, Outcome expected)
            throws InterruptedException {
        processes.awaitSuccess();
        assertTrainAsOne(IntStream.range(0, ranks).mapToObj(processes::output).toList(), expected);
    }

    /** Compares what ranks printed. */
    static void assertTrainAsOne(List<String> outputs, Outcome expected) {
        float[] means = new float[expected.losses().size()];
        List<String> parameters = parameters(outputs.get(0));
        for (String output : outputs) {
            float[] losses = losses(output);
            assertEquals(means.length, losses.length, output);
            for (int i = 0; i < losses.length; i++) {
                means[i] += losses[i] / outputs.size();
            }
            assertEquals(parameters, parameters(output));
        }
        for (int i = 0; i < means.length; i++) {
            assertEquals(expected.losses().get(i), means[i], TOLERANCE, "batch " + i);
        }
        assertEquals(expected.parameters().size(), parameters.size());
        for (int i = 0; i < parameters.size(); i++) {
            assertArrayEquals(expected.parameters().get(i), numbers(parameters.get(i)), TOLERANCE);
        }
    }

    private static float[] losses(String output) {
        return numbers(
                output.lines()
                        .filter(line -> line.startsWith("loss "))
                        .map(line -> line.substring("loss ".length()))
                        .toList()
                        .toString());
    }

    private static List<String> parameters(String output) {
        return output.lines()
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
