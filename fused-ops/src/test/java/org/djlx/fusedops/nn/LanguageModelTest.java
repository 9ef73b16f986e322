/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.nn;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.GradientCollector;
import ai.djl.training.ParameterStore;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.gradient.DifferentiableCollectives;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.fusedops.nn.LanguageModel.Settings;
import org.djlx.nativeops.NoGradient;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/**
 * A language model of all blocks on several ranks, and by plain DJL on one from the same full
 * parameters, in float64: the loss, the scores, and the gradients of all parameters.
 */
class LanguageModelTest {

    private static final double TOLERANCE = 1e-11;
    private static final int BATCH = 4;
    private static final int SEQUENCE = 6;

    /** An array as Java has it. */
    private record Values(Shape shape, double[] values) {

        static Map<String, Values> of(Map<String, NDArray> arrays) {
            Map<String, Values> all = new LinkedHashMap<>();
            arrays.forEach((name, array) -> all.put(name, of(array)));
            return all;
        }

        static Values of(NDArray array) {
            return new Values(array.getShape(), array.toDoubleArray());
        }
    }

    private record Result(
            Map<String, Values> parameters,
            Map<String, Values> gradients,
            double loss,
            Values scores) {}

    private static long[] tokens(Settings settings) {
        Random random = new Random(7);
        return random.longs(BATCH * SEQUENCE, 0, settings.vocabulary()).toArray();
    }

    /** The next token, but for the end of each sequence, which is ignored. */
    private static long[] labels(Settings settings) {
        long[] tokens = tokens(settings);
        long[] labels = new long[tokens.length];
        for (int i = 0; i < labels.length; i++) {
            boolean end = i % SEQUENCE == SEQUENCE - 1;
            labels[i] = end ? LanguageModel.IGNORED : tokens[i + 1];
        }
        return labels;
    }

    private static Result run(ProcessGroup group, Settings settings) {
        try (NDManager manager = NDManager.newBaseManager("PyTorch");
                GradientScope scope = GradientScope.open()) {
            Shape shape =
                    settings.sequence() == 0
                            ? new Shape(BATCH, SEQUENCE)
                            : new Shape(BATCH * SEQUENCE);
            LanguageModel net = LanguageModel.create(group, settings);
            net.setInitializers(group.rank() + 1);
            net.model().initialize(manager, DataType.FLOAT64, shape);
            ParameterStore store = new ParameterStore(manager, false);
            NDList tokens = new NDList(manager.create(tokens(settings), shape));
            NDList labels =
                    new NDList(manager.create(labels(settings), new Shape(BATCH, SEQUENCE)));
            NDArray loss = net.loss().evaluate(labels, net.model().forward(store, tokens, true));
            scope.backward(loss);
            NDArray own = net.model().forward(store, tokens, false).singletonOrThrow();
            NDArray scores = DifferentiableCollectives.allGather(own, -1, group);
            NDArray valid =
                    scores.reshape(BATCH * SEQUENCE, -1).get(":, :" + settings.vocabulary());
            Map<String, Values> parameters = Values.of(net.full(manager));
            return new Result(
                    parameters,
                    Values.of(net.fullGradients(manager)),
                    loss.getDouble(),
                    Values.of(valid));
        }
    }

    private static Result reference(Map<String, Values> parameters, Settings settings) {
        try (NDManager manager = NDManager.newBaseManager("PyTorch");
                GradientCollector collector = Engine.getEngine("PyTorch").newGradientCollector()) {
            Map<String, NDArray> arrays = new LinkedHashMap<>();
            parameters.forEach(
                    (name, values) -> {
                        NDArray array = manager.create(values.values(), values.shape());
                        array.setRequiresGradient(true);
                        arrays.put(name, array);
                    });
            PlainLanguageModel model = new PlainLanguageModel(manager, arrays, settings);
            NDArray tokens = manager.create(tokens(settings), new Shape(BATCH, SEQUENCE));
            NDArray loss = model.loss(tokens, labels(settings));
            collector.backward(loss);
            Values scores = Values.of(NoGradient.get(() -> model.scores(tokens)));
            Map<String, Values> gradients = new LinkedHashMap<>();
            arrays.forEach(
                    (name, array) -> {
                        try (NDArray gradient = array.getGradient()) {
                            gradients.put(name, Values.of(gradient));
                        }
                    });
            return new Result(parameters, gradients, loss.getDouble(), scores);
        }
    }

    @ParameterizedTest
    @CsvSource({
        "1, false, 4, 4, 10, false, 0",
        "2, false, 4, 2, 10, true, 0",
        "2, true, 4, 4, 10, false, 0",
        "2, true, 4, 1, 11, true, 6",
        "4, false, 4, 2, 11, false, 6",
        "4, true, 4, 4, 13, true, 0",
        "4, true, 8, 2, 5, false, 6",
        "8, true, 8, 2, 12, true, 6",
    })
    void equalsTheUndivided(
            int ranks,
            boolean sequenceParallel,
            int heads,
            int keyValueHeads,
            long vocabulary,
            boolean tied,
            long sequence) {
        Settings settings =
                new Settings(
                        sequenceParallel, heads, keyValueHeads, vocabulary, tied, sequence, null);
        List<ProcessGroup> groups = ProcessGroups.local(ranks);
        List<Result> results;
        try {
            results = ProcessGroups.run(groups, group -> run(group, settings));
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
        Result expected = reference(results.get(0).parameters(), settings);
        for (Result result : results) {
            assertEquals(expected.loss(), result.loss(), TOLERANCE);
            assertArrayEquals(expected.scores().values(), result.scores().values(), TOLERANCE);
            assertEquals(expected.gradients().keySet(), result.gradients().keySet());
            expected.gradients()
                    .forEach(
                            (name, gradient) ->
                                    assertArrayEquals(
                                            gradient.values(),
                                            result.gradients().get(name).values(),
                                            TOLERANCE,
                                            name));
        }
    }
}
