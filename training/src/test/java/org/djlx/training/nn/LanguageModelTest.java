// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.nn;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.GradientCollector;
import ai.djl.training.ParameterStore;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.gradient.DifferentiableCollectives;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.training.nn.LanguageModel.Settings;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/**
 * A language model of all blocks on several ranks, compared with DJL's operators on one rank with
 * the same full parameters, in float64: loss, logits and gradients.
 */
@Tag("slow")
class LanguageModelTest {

    private static final double TOLERANCE = 1e-11;
    private static final int BATCH = 4;
    private static final int SEQUENCE = 6;

    /** The shape and values of an array. */
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

    /** Makes the groups of a test. */
    List<ProcessGroup> groups(int ranks) {
        return ProcessGroups.local(ranks);
    }

    private static NDManager newManager(ProcessGroup group) {
        return NDManager.newBaseManager(group.device(), "PyTorch");
    }

    private static long[] tokens(Settings settings) {
        Random random = new Random(7);
        return random.longs(BATCH * SEQUENCE, 0, settings.vocabulary()).toArray();
    }

    /** Returns the labels: the next token; the ignored label at the end of each sequence. */
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
        try (NDManager manager = newManager(group);
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
        try (NDManager manager = NDManager.newBaseManager(Device.cpu(), "PyTorch");
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
        List<ProcessGroup> groups = groups(ranks);
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

    private static double loss(ProcessGroup group, LanguageModel net, Settings settings) {
        try (NDManager manager = newManager(group)) {
            ParameterStore store = new ParameterStore(manager, false);
            NDList tokens =
                    new NDList(manager.create(tokens(settings), new Shape(BATCH * SEQUENCE)));
            NDList labels =
                    new NDList(manager.create(labels(settings), new Shape(BATCH, SEQUENCE)));
            NDList scores = net.model().forward(store, tokens, false);
            return NoGradient.get(() -> net.loss().evaluate(labels, scores)).getDouble();
        }
    }

    /**
     * The gradient of each parameter along a random direction, compared with finite differences.
     */
    @Test
    void equalsFiniteDifferences() {
        double step = 1e-5;
        Settings settings = new Settings(true, 4, 2, 11, true, SEQUENCE, null);
        List<ProcessGroup> groups = groups(4);
        try {
            List<Result> results = ProcessGroups.run(groups, group -> run(group, settings));
            Result result = results.get(0);
            ProcessGroups.run(
                    groups,
                    group -> {
                        try (NDManager manager = newManager(group)) {
                            LanguageModel net = LanguageModel.create(group, settings);
                            net.model()
                                    .initialize(
                                            manager, DataType.FLOAT64, new Shape(BATCH * SEQUENCE));
                            for (String name : result.parameters().keySet()) {
                                Map<String, double[]> along = Map.of(name, direction(result, name));
                                setFull(net, manager, values(result, step, along));
                                double above = loss(group, net, settings);
                                setFull(net, manager, values(result, -step, along));
                                double below = loss(group, net, settings);
                                double expected = 0;
                                double[] gradient = result.gradients().get(name).values();
                                for (int i = 0; i < gradient.length; i++) {
                                    expected += gradient[i] * along.get(name)[i];
                                }
                                double difference = (above - below) / (2 * step);
                                assertEquals(expected, difference, 1e-8, name);
                            }
                        }
                        return null;
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    private static void setFull(
            LanguageModel net, NDManager manager, Map<String, Values> parameters) {
        parameters.forEach(
                (name, values) -> {
                    int dot = name.lastIndexOf('.');
                    try (NDArray full = manager.create(values.values(), values.shape())) {
                        ShardedBlock block = net.blocks().get(name.substring(0, dot));
                        block.setFull(name.substring(dot + 1), full);
                    }
                });
    }

    private static double[] direction(Result result, String name) {
        int length = result.parameters().get(name).values().length;
        return new Random(length).doubles(length, -1, 1).toArray();
    }

    private static Map<String, Values> values(
            Result result, double step, Map<String, double[]> along) {
        Map<String, Values> all = new LinkedHashMap<>(result.parameters());
        along.forEach(
                (name, direction) -> {
                    double[] moved = all.get(name).values().clone();
                    for (int i = 0; i < moved.length; i++) {
                        moved[i] += step * direction[i];
                    }
                    all.put(name, new Values(all.get(name).shape(), moved));
                });
        return all;
    }

    /** 4 ranks save, with shared key and value heads; 1 and 2 ranks load. */
    @ParameterizedTest
    @CsvSource({"false", "true"})
    void checkpointsDoNotDependOnTheNumberOfRanks(boolean tied) {
        Settings settings = new Settings(true, 4, 2, 11, tied, 0, null);
        List<byte[]> saved = saved(4, settings, null);
        for (byte[] bytes : saved) {
            assertArrayEquals(saved.get(0), bytes);
        }
        for (int ranks : new int[] {1, 2}) {
            for (byte[] bytes : saved(ranks, settings, saved.get(0))) {
                assertArrayEquals(saved.get(0), bytes);
            }
        }
    }

    /** Saves a model with random or with loaded parameters. */
    private List<byte[]> saved(int ranks, Settings settings, byte[] before) {
        List<ProcessGroup> groups = groups(ranks);
        try {
            return ProcessGroups.run(
                    groups,
                    group -> {
                        try (NDManager manager = newManager(group)) {
                            LanguageModel net = LanguageModel.create(group, settings);
                            if (before == null) {
                                net.setInitializers(group.rank());
                                net.model()
                                        .initialize(
                                                manager,
                                                DataType.FLOAT64,
                                                new Shape(BATCH, SEQUENCE));
                            } else {
                                net.model()
                                        .loadParameters(
                                                manager,
                                                new DataInputStream(
                                                        new ByteArrayInputStream(before)));
                            }
                            ByteArrayOutputStream bytes = new ByteArrayOutputStream();
                            net.model().saveParameters(new DataOutputStream(bytes));
                            return bytes.toByteArray();
                        }
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    /** Arrays made from parameters are closed with the batch. */
    @ParameterizedTest
    @CsvSource({"false", "true"})
    void leavesNothingBehind(boolean sequenceParallel) {
        Settings settings =
                new Settings(sequenceParallel, 4, 1, 11, true, SEQUENCE, ScalarType.BFLOAT16);
        List<ProcessGroup> groups = groups(2);
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        try (NDManager manager = newManager(group)) {
                            LanguageModel net = LanguageModel.create(group, settings);
                            Shape shape = new Shape(BATCH * SEQUENCE);
                            net.model().initialize(manager, DataType.FLOAT32, shape);
                            ParameterStore store = new ParameterStore(manager, false);
                            step(group, net, store, settings);
                            int arrays = manager.getManagedArrays().size();
                            step(group, net, store, settings);
                            assertEquals(arrays, manager.getManagedArrays().size());
                        }
                        return null;
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    private static void step(
            ProcessGroup group, LanguageModel net, ParameterStore store, Settings settings) {
        try (NDManager batch = newManager(group);
                GradientScope scope = GradientScope.open()) {
            NDList tokens = new NDList(batch.create(tokens(settings)));
            NDList labels = new NDList(batch.create(labels(settings)));
            scope.backward(net.loss().evaluate(labels, net.model().forward(store, tokens, true)));
            net.model().forward(store, tokens, false);
        }
    }

    /** A rank is refused before it waits for the others. */
    @Test
    void refusesWhatDoesNotFit() {
        List<ProcessGroup> groups = groups(4);
        ProcessGroup group = groups.get(0);
        try (NDManager manager = newManager(group)) {
            assertRefused(
                    "the heads (6) must be divisible by",
                    () -> attention(group).setHeads(6).build());
            assertRefused(
                    "the key and value heads (6) must be divisible by",
                    () -> attention(group).setHeads(12).optKeyValueHeads(6).build());
            assertRefused(
                    "their size, 4, must be 1 or more, and the number of key and value heads, 3,"
                            + " must divide",
                    () -> attention(group).setHeads(4).optKeyValueHeads(3).build());
            assertRefused(
                    "the sequence length must be 0 (for one sequence) or more, not -3",
                    () -> attention(group).setHeads(4).optSequenceLength(-3).build());
            assertRefused("the number of heads, 0,", () -> attention(group).build());
            assertRefused("setGroup", () -> attention(null).setHeads(4).build());
            RotaryEmbedding rotary = RotaryEmbedding.builder().setHeadSize(6).build();
            assertRefused(
                    "heads of size 6, not 4",
                    () -> attention(group).setHeads(4).optRotary(rotary).build());
            assertRefused(
                    "the hidden values must be 1 or more",
                    () ->
                            ParallelTransformerBlock.builder()
                                    .setGroup(group)
                                    .setHeads(4)
                                    .setHeadSize(4)
                                    .build());
            ParallelSelfAttention attention =
                    attention(group)
                            .setHeads(4)
                            .optSequenceParallel(true)
                            .optSequenceLength(3)
                            .build();
            ParameterStore store = new ParameterStore(manager, false);
            for (Shape shape : new Shape[] {new Shape(4), new Shape(2, 12), new Shape(2, 4, 12)}) {
                NDList x = new NDList(manager.ones(shape));
                assertRefused(
                        "of sequences of 3 tokens, not " + shape + " on rank 0",
                        () -> attention.forward(store, x, false));
            }
            ParallelEmbedding embedding =
                    ParallelEmbedding.builder()
                            .setGroup(group)
                            .setVocabulary(5)
                            .setSize(12)
                            .build();
            assertRefused(
                    "5, the vocabulary of the tied embedding",
                    () ->
                            ColumnParallelLinear.builder()
                                    .setGroup(group)
                                    .setUnits(6)
                                    .optTied(embedding)
                                    .build());
            assertRefused(
                    "same group",
                    () ->
                            ColumnParallelLinear.builder()
                                    .setGroup(groups.get(1))
                                    .optTied(embedding)
                                    .build());
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    /** Every rank refuses an input of another size than the weights, before anything is sent. */
    @Test
    void refusesAnInputOfAnotherSize() {
        List<ProcessGroup> groups = groups(2);
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        try (NDManager manager = newManager(group)) {
                            ParallelSelfAttention attention = attention(group).setHeads(4).build();
                            attention.initialize(manager, DataType.FLOAT32, new Shape(1, 3, 12));
                            if (group.rank() == 0) {
                                ParameterStore store = new ParameterStore(manager, false);
                                NDList x = new NDList(manager.ones(new Shape(1, 3, 10)));
                                assertRefused(
                                        "the input must be (tokens, …, 12) on rank 0",
                                        () -> attention.forward(store, x, false));
                            }
                        }
                        return null;
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    private static ParallelSelfAttention.Builder attention(ProcessGroup group) {
        return ParallelSelfAttention.builder().setGroup(group).setHeadSize(4);
    }

    private static void assertRefused(String what, Executable call) {
        IllegalArgumentException e = assertThrows(IllegalArgumentException.class, call);
        assertTrue(e.getMessage().contains(what), e.getMessage());
    }
}
