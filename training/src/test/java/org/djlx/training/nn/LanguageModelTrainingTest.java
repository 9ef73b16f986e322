// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.nn;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.stream.IntStream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.training.DataParallelConfig;
import org.djlx.training.DataParallelTrainer;
import org.djlx.training.GradientReduction;
import org.djlx.training.nn.LanguageModel.Settings;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/**
 * Ranks that share a model, in several groups that share batches, train like DJL with the undivided
 * model and undivided batches: losses of ten steps, and parameters at the end.
 */
@Tag("slow")
class LanguageModelTrainingTest {

    private static final int STEPS = 10;
    private static final int BATCH = 4;
    private static final int SEQUENCE = 6;
    private static final int VOCABULARY = 11;
    private static final double CLIP = 0.5; // the greatest norm of the gradients

    /** The losses of all steps, and the full parameters before and after. */
    private record Outcome(
            List<Double> losses, Map<String, double[]> begin, Map<String, double[]> end) {}

    /** Makes the groups of a test. */
    List<ProcessGroup> groups(int ranks) {
        return ProcessGroups.local(ranks);
    }

    private static Optimizer optimizer(String name, float rate) {
        Tracker tracker = Tracker.fixed(rate);
        return name.equals("sgd")
                ? Optimizer.sgd().setLearningRateTracker(tracker).build()
                : Optimizer.adam().optLearningRateTracker(tracker).build();
    }

    /** Tokens that follow each other by a rule, so that there is something to learn. */
    private static long[] tokens(int step) {
        Random random = new Random(step);
        long[] tokens = new long[BATCH * SEQUENCE];
        for (int i = 0; i < tokens.length; i++) {
            tokens[i] =
                    i % SEQUENCE == 0
                            ? random.nextInt(VOCABULARY)
                            : (3 * tokens[i - 1] + 1) % VOCABULARY;
        }
        return tokens;
    }

    private static long[] labels(long[] tokens) {
        long[] labels = new long[tokens.length];
        for (int i = 0; i < labels.length; i++) {
            boolean end = i % SEQUENCE == SEQUENCE - 1;
            labels[i] = end ? LanguageModel.IGNORED : tokens[i + 1];
        }
        return labels;
    }

    private static Map<String, double[]> values(Map<String, NDArray> arrays) {
        Map<String, double[]> values = new LinkedHashMap<>();
        arrays.forEach(
                (name, array) ->
                        values.put(name, array.toType(DataType.FLOAT64, true).toDoubleArray()));
        return values;
    }

    private static Outcome train(
            ProcessGroup tensor,
            ProcessGroup data,
            Settings settings,
            Optimizer optimizer,
            DataType type) {
        LanguageModel net = LanguageModel.create(tensor, settings);
        net.setInitializers(1 + tensor.rank() + 10 * data.rank());
        DataParallelConfig config =
                new DataParallelConfig(net.loss())
                        .optProcessGroup(data)
                        .optGradientReduction(GradientReduction.MEAN)
                        .optBucketBytes(512);
        config.optOptimizer(optimizer).optDevices(new Device[] {data.device()});
        try (Model model = Model.newInstance("language", data.device(), "PyTorch-P2P")) {
            model.setBlock(net.model());
            model.setDataType(type);
            int rows = BATCH / data.worldSize();
            boolean flat = settings.sequence() > 0;
            Shape shape = flat ? new Shape(rows * SEQUENCE) : new Shape(rows, SEQUENCE);
            try (Trainer trainer = model.newTrainer(config)) {
                trainer.initialize(shape);
                Map<String, double[]> begin = full(trainer, net);
                List<Double> losses = new ArrayList<>();
                for (int step = 0; step < STEPS; step++) {
                    try (NDManager manager = trainer.getManager().newSubManager(data.device())) {
                        String own = rows * data.rank() + ":" + rows * (data.rank() + 1);
                        NDArray tokens =
                                manager.create(tokens(step), new Shape(BATCH, SEQUENCE)).get(own);
                        NDArray labels =
                                manager.create(labels(tokens(step)), new Shape(BATCH, SEQUENCE))
                                        .get(own);
                        NDList batch = new NDList(tokens.reshape(shape).duplicate());
                        NDArray loss;
                        try (GradientCollector collector = trainer.newGradientCollector()) {
                            NDList predictions = trainer.forward(batch);
                            loss = trainer.getLoss().evaluate(new NDList(labels), predictions);
                            collector.backward(loss);
                        }
                        ((DataParallelTrainer) trainer).clipGradNorm(CLIP);
                        trainer.step();
                        losses.add(
                                NoGradient.get(
                                        () -> loss.toType(DataType.FLOAT64, true).getDouble()));
                    }
                }
                return new Outcome(losses, begin, full(trainer, net));
            }
        }
    }

    private static Map<String, double[]> full(Trainer trainer, LanguageModel net) {
        try (NDManager manager = trainer.getManager().newSubManager()) {
            return values(net.full(manager));
        }
    }

    /** Trains on all ranks. Returns the outcome of rank 0, with losses of undivided batches. */
    private Outcome train(
            int dataParallel,
            int tensorParallel,
            Settings settings,
            String optimizer,
            float rate,
            DataType type) {
        List<ProcessGroup> groups = groups(dataParallel * tensorParallel);
        try {
            List<Outcome> outcomes =
                    ProcessGroups.run(
                            groups,
                            group -> {
                                int replica = group.rank() / tensorParallel;
                                int part = group.rank() % tensorParallel;
                                return train(
                                        group.split(replica, group.rank()),
                                        group.split(part, group.rank()),
                                        settings,
                                        optimizer(optimizer, rate),
                                        type);
                            });
            for (Outcome outcome : outcomes) {
                outcomes.get(0)
                        .end()
                        .forEach(
                                (name, values) ->
                                        assertArrayEquals(values, outcome.end().get(name), name));
            }
            List<Double> losses =
                    IntStream.range(0, STEPS)
                            .mapToObj(
                                    step ->
                                            outcomes.stream()
                                                    .mapToDouble(o -> o.losses().get(step))
                                                    .average()
                                                    .orElseThrow())
                            .toList();
            return new Outcome(losses, outcomes.get(0).begin(), outcomes.get(0).end());
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    /** Trains without ranks, from full parameters. */
    private static Outcome reference(
            Map<String, double[]> begin, Settings settings, Optimizer optimizer) {
        try (NDManager manager = NDManager.newBaseManager(Device.cpu(), "PyTorch")) {
            Map<String, NDArray> arrays = new LinkedHashMap<>();
            begin.forEach(
                    (name, values) -> {
                        NDArray array = manager.create(values, shape(name, values.length));
                        array.setRequiresGradient(true);
                        arrays.put(name, array);
                    });
            List<Double> losses = new ArrayList<>();
            for (int step = 0; step < STEPS; step++) {
                try (NDManager own = manager.newSubManager();
                        GradientCollector collector =
                                Engine.getEngine("PyTorch").newGradientCollector()) {
                    PlainLanguageModel model = new PlainLanguageModel(own, arrays, settings);
                    NDArray tokens = own.create(tokens(step), new Shape(BATCH, SEQUENCE));
                    NDArray loss = model.loss(tokens, labels(tokens(step)));
                    collector.backward(loss);
                    losses.add(loss.getDouble());
                }
                double squares = 0;
                for (NDArray array : arrays.values()) {
                    double[] gradient = array.getGradient().toDoubleArray();
                    squares += Arrays.stream(gradient).map(g -> g * g).sum();
                }
                double norm = Math.sqrt(squares);
                assertTrue(step > 0 || norm > CLIP, "nothing is clipped: " + norm);
                double factor = Math.min(1, CLIP / (norm + 1e-6));
                arrays.forEach(
                        (name, array) -> {
                            try (NDArray gradient = array.getGradient()) {
                                gradient.muli(factor);
                                NoGradient.run(() -> optimizer.update(name, array, gradient));
                            }
                        });
            }
            return new Outcome(losses, begin, values(arrays));
        }
    }

    private static Shape shape(String name, int length) {
        long size = LanguageModel.SIZE;
        if (length == size || name.endsWith("bias")) {
            return new Shape(length);
        }
        boolean out = name.endsWith("down") || name.endsWith("output");
        return out ? new Shape(size, length / size) : new Shape(length / size, size);
    }

    private static Settings settings(
            boolean sequenceParallel, boolean tied, ScalarType computeType) {
        long sequence = sequenceParallel ? SEQUENCE : 0;
        return new Settings(sequenceParallel, 4, 2, VOCABULARY, tied, sequence, computeType);
    }

    @ParameterizedTest
    @CsvSource({
        "1, 1, false, true, adam",
        "1, 2, true, false, sgd",
        "1, 4, true, true, adam",
        "1, 4, false, false, adam",
        "2, 2, true, true, adam",
        "2, 2, false, false, sgd"
    })
    @Timeout(120)
    void trainAsOneDevice(
            int dataParallel,
            int tensorParallel,
            boolean sequenceParallel,
            boolean tied,
            String optimizer) {
        float rate = optimizer.equals("sgd") ? 0.2f : 0.02f;
        Settings settings = settings(sequenceParallel, tied, null);
        Outcome actual =
                train(dataParallel, tensorParallel, settings, optimizer, rate, DataType.FLOAT64);
        Outcome expected = reference(actual.begin(), settings, optimizer(optimizer, rate));
        for (int step = 0; step < STEPS; step++) {
            assertEquals(expected.losses().get(step), actual.losses().get(step), 1e-9);
        }
        expected.end()
                .forEach(
                        (name, values) -> {
                            assertArrayEquals(values, actual.end().get(name), 1e-8, name);
                            double moved = distance(values, actual.begin().get(name));
                            assertTrue(moved > 1e-4, name + " moved by " + moved);
                        });
        assertTrue(expected.losses().get(STEPS - 1) < expected.losses().get(0) - 0.1);
    }

    private static double distance(double[] one, double[] other) {
        return IntStream.range(0, one.length)
                .mapToDouble(i -> Math.abs(one[i] - other[i]))
                .max()
                .orElseThrow();
    }

    /** Steps too small for bfloat16 add up, because parameters and gradients are float32. */
    @ParameterizedTest
    @CsvSource({"1, 1, false", "1, 2, true", "2, 1, true", "2, 2, true"})
    @Timeout(120)
    void trainInBfloat16(int dataParallel, int tensorParallel, boolean sequenceParallel) {
        Settings narrow = settings(sequenceParallel, true, ScalarType.BFLOAT16);
        float rate = 1e-4f;
        Outcome actual =
                train(dataParallel, tensorParallel, narrow, "adam", rate, DataType.FLOAT32);
        Outcome wide = reference(actual.begin(), narrow, optimizer("adam", rate));
        for (int step = 0; step < STEPS; step++) {
            assertEquals(wide.losses().get(step), actual.losses().get(step), 0.02);
        }
        actual.begin()
                .forEach(
                        (name, begin) -> {
                            double moved = distance(begin, actual.end().get(name));
                            assertTrue(
                                    moved > 0.5 * STEPS * rate && moved < 1.1 * STEPS * rate,
                                    name + " moved by " + moved);
                        });
    }
}
