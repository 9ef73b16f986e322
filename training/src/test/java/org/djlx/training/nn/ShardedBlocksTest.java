// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.nn;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.Parameter;
import ai.djl.training.GradientCollector;
import ai.djl.training.ParameterStore;
import ai.djl.training.initializer.NormalInitializer;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.BiConsumer;
import java.util.stream.Stream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.TestArrays;
import org.djlx.collectives.gradient.DifferentiableCollectives;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;
import org.junit.jupiter.params.provider.ValueSource;

/**
 * A network of all blocks with residual connections on several ranks, compared with DJL's operators
 * on one rank with the same full parameters, in float64: outputs, and gradients of all parameters
 * and the input.
 */
class ShardedBlocksTest {

    private static final double TOLERANCE = 1e-11;
    private static final long SIZE = 6;
    private static final long HIDDEN = 8;

    static Stream<Arguments> cases() {
        return Stream.of(1, 2, 4)
                .flatMap(
                        ranks ->
                                Stream.of(
                                        Arguments.of(ranks, false, new Shape(8, SIZE)),
                                        Arguments.of(ranks, true, new Shape(8, SIZE)),
                                        Arguments.of(ranks, true, new Shape(4, 3, SIZE)),
                                        Arguments.of(ranks, false, new Shape(4, 3, SIZE))));
    }

    /** The blocks of one rank. */
    private static final class Net {

        final ProcessGroup group;
        final boolean sequence;
        final Map<String, ShardedBlock> blocks = new LinkedHashMap<>();

        Net(ProcessGroup group, boolean sequence) {
            this.group = group;
            this.sequence = sequence;
            blocks.put("norm", common(RmsNorm.builder()).build());
            blocks.put("mlp", common(ParallelMlp.builder()).setHidden(HIDDEN).build());
            blocks.put("column", common(ColumnParallelLinear.builder()).setUnits(HIDDEN).build());
            blocks.put("row", common(RowParallelLinear.builder()).setUnits(SIZE).build());
        }

        private <B extends ShardedBlock.Builder<B>> B common(B builder) {
            return builder.setGroup(group).optSequenceParallel(sequence);
        }

        /** Initialises with random numbers. */
        void initialize(NDManager manager, Shape whole) {
            long[] sizes = whole.getShape().clone();
            sizes[0] /= sequence ? group.worldSize() : 1;
            Shape own = new Shape(sizes);
            for (Map.Entry<String, ShardedBlock> block : blocks.entrySet()) {
                Shape input = own;
                if (block.getKey().equals("row")) {
                    input = blocks.get("column").getOutputShapes(new Shape[] {own})[0];
                }
                block.getValue().setInitializer(new NormalInitializer(0.5f), p -> true);
                block.getValue().initialize(manager, DataType.FLOAT64, input);
            }
        }

        NDArray forward(ParameterStore store, NDArray x, boolean training) {
            NDArray start = training ? DifferentiableCollectives.cut(x) : x;
            NDArray z =
                    start.add(call("mlp", store, call("norm", store, start, training), training));
            NDArray inner = call("column", store, z, training).tanh();
            return z.add(call("row", store, inner, training));
        }

        private NDArray call(String name, ParameterStore store, NDArray x, boolean training) {
            return blocks.get(name).forward(store, new NDList(x), training).singletonOrThrow();
        }

        Map<String, double[]> full(NDManager manager) {
            Map<String, double[]> all = new LinkedHashMap<>();
            blocks.forEach(
                    (name, block) -> {
                        for (Parameter parameter : block.getParameters().values()) {
                            NDArray full = block.full(parameter.getName(), manager);
                            all.put(name + "." + parameter.getName(), full.toDoubleArray());
                        }
                    });
            return all;
        }

        /** Collects full gradients, like parameters. */
        Map<String, double[]> fullGradients(NDManager manager) {
            for (ShardedBlock block : blocks.values()) {
                for (Parameter parameter : block.getParameters().values()) {
                    NDArray array = parameter.getArray();
                    try (NDArray gradient = array.getGradient()) {
                        NoGradient.run(() -> gradient.copyTo(array));
                    }
                }
            }
            return full(manager);
        }
    }

    private record Result(
            Map<String, double[]> parameters,
            Map<String, double[]> gradients,
            double[] output,
            double[] inference,
            double[] inputGradient) {}

    private static NDArray input(NDManager manager, Shape shape) {
        return TestArrays.random(manager, ScalarType.FLOAT64, shape, 3);
    }

    private static NDArray weights(NDManager manager, Shape shape) {
        return TestArrays.random(manager, ScalarType.FLOAT64, shape, 4);
    }

    private static NDArray part(NDArray whole, ProcessGroup group, boolean divided) {
        NDArray part = divided ? whole.split(group.worldSize(), 0).get(group.rank()) : whole;
        return part.duplicate();
    }

    private static Result run(ProcessGroup group, boolean sequence, Shape shape) {
        try (NDManager manager = NDManager.newBaseManager("PyTorch");
                GradientScope scope = GradientScope.open()) {
            Net net = new Net(group, sequence);
            net.initialize(manager, shape);
            ParameterStore store = new ParameterStore(manager, false);
            NDArray x = part(input(manager, shape), group, sequence);
            x.setRequiresGradient(true);
            NDArray y = net.forward(store, x.add(x), true);
            scope.backward(y.mul(part(weights(manager, shape), group, sequence)).sum());
            double[] inference = net.forward(store, x.stopGradient().mul(2), false).toDoubleArray();
            Map<String, double[]> parameters = net.full(manager);
            try (NDArray gradient = x.getGradient()) {
                return new Result(
                        parameters,
                        net.fullGradients(manager),
                        y.toDoubleArray(),
                        inference,
                        gradient.toDoubleArray());
            }
        }
    }

    /** The network by DJL's operators, with full parameters. */
    private static Result reference(Map<String, double[]> parameters, Shape shape) {
        try (NDManager manager = NDManager.newBaseManager("PyTorch");
                GradientCollector collector = Engine.getEngine("PyTorch").newGradientCollector()) {
            Map<String, NDArray> p = new LinkedHashMap<>();
            parameters.forEach(
                    (name, values) -> {
                        boolean wide = name.endsWith("gate") || name.endsWith("up");
                        boolean column = name.equals("column.weight") || wide;
                        boolean vector = name.endsWith("bias") || name.startsWith("norm");
                        Shape full =
                                vector
                                        ? new Shape(values.length)
                                        : column
                                                ? new Shape(HIDDEN, SIZE)
                                                : new Shape(SIZE, HIDDEN);
                        NDArray array = manager.create(values, full);
                        array.setRequiresGradient(true);
                        p.put(name, array);
                    });
            NDArray x = input(manager, shape);
            x.setRequiresGradient(true);
            NDArray start = x.add(x).reshape(-1, SIZE);
            NDArray mean = start.square().mean(new int[] {1}, true).add(1e-5f);
            NDArray normed = start.div(mean.sqrt()).mul(p.get("norm.weight"));
            NDArray gate = normed.matMul(p.get("mlp.gate").transpose());
            NDArray up = normed.matMul(p.get("mlp.up").transpose());
            NDArray gated = gate.mul(Activation.sigmoid(gate)).mul(up);
            NDArray z = start.add(gated.matMul(p.get("mlp.down").transpose()));
            NDArray inner =
                    z.matMul(p.get("column.weight").transpose()).add(p.get("column.bias")).tanh();
            NDArray y = z.add(inner.matMul(p.get("row.weight").transpose()).add(p.get("row.bias")));
            collector.backward(y.mul(weights(manager, shape).reshape(-1, SIZE)).sum());
            Map<String, double[]> gradients = new LinkedHashMap<>();
            p.forEach(
                    (name, array) -> {
                        try (NDArray gradient = array.getGradient()) {
                            gradients.put(name, gradient.toDoubleArray());
                        }
                    });
            double[] output = y.toDoubleArray();
            try (NDArray gradient = x.getGradient()) {
                return new Result(parameters, gradients, output, output, gradient.toDoubleArray());
            }
        }
    }

    @ParameterizedTest
    @MethodSource("cases")
    void equalTheUnsharded(int ranks, boolean sequence, Shape shape) {
        List<ProcessGroup> groups = ProcessGroups.local(ranks);
        List<Result> results;
        try {
            results = ProcessGroups.run(groups, group -> run(group, sequence, shape));
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
        Result expected = reference(results.get(0).parameters(), shape);
        List<Double> outputs = new ArrayList<>();
        List<Double> inputGradients = new ArrayList<>();
        for (int rank = 0; rank < ranks; rank++) {
            Result result = results.get(rank);
            expected.gradients()
                    .forEach(
                            (name, gradient) ->
                                    assertArrayEquals(
                                            gradient,
                                            result.gradients().get(name),
                                            TOLERANCE,
                                            name));
            assertArrayEquals(result.output(), result.inference(), TOLERANCE);
            if (sequence || rank == 0) {
                for (double value : result.output()) {
                    outputs.add(value);
                }
                for (double value : result.inputGradient()) {
                    inputGradients.add(value);
                }
            } else {
                assertArrayEquals(expected.output(), result.output(), TOLERANCE);
                assertArrayEquals(expected.inputGradient(), result.inputGradient(), TOLERANCE);
            }
        }
        assertArrayEquals(expected.output(), array(outputs), TOLERANCE);
        assertArrayEquals(expected.inputGradient(), array(inputGradients), TOLERANCE);
    }

    /**
     * Weight and bias of each linear layer along a random direction, compared with finite
     * differences.
     */
    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void linearLayersEqualFiniteDifferences(boolean sequence) {
        onTwoRanks(
                sequence,
                (net, manager) -> {
                    ProcessGroup group = net.group;
                    NDArray whole = input(manager, new Shape(8, SIZE));
                    NDArray own = part(whole, group, sequence);
                    assertFiniteDifferences(net.blocks.get("column"), own, true);
                    Shape columns = new Shape(8, HIDDEN / 2);
                    NDArray x =
                            TestArrays.random(manager, ScalarType.FLOAT64, columns, group.rank());
                    // Rows that all ranks have count once.
                    assertFiniteDifferences(net.blocks.get("row"), x, sequence);
                });
    }

    /** Runs code with an initialised net on each of two ranks. */
    private static void onTwoRanks(boolean sequence, BiConsumer<Net, NDManager> body) {
        List<ProcessGroup> groups = ProcessGroups.local(2);
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                            Net net = new Net(group, sequence);
                            net.initialize(manager, new Shape(8, SIZE));
                            body.accept(net, manager);
                        }
                        return null;
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    /**
     * Compares gradients with differences.
     *
     * @param divided whether the loss is what the ranks' parts add up to; otherwise each has all
     */
    private static void assertFiniteDifferences(ShardedBlock block, NDArray x, boolean divided) {
        double step = 1e-6; // whose square leaves nothing of the third derivative
        NDManager manager = x.getManager();
        for (String name : List.of("weight", "bias")) {
            Shape shape = block.full(name, manager).getShape();
            block.setFull(name, TestArrays.random(manager, ScalarType.FLOAT64, shape, 4));
        }
        try (GradientScope scope = GradientScope.open()) {
            scope.backward(tanh(block, x, divided, true));
        }
        Map<String, NDArray> parameters = new LinkedHashMap<>();
        for (String name : List.of("weight", "bias")) {
            parameters.put(name, block.full(name, manager));
        }
        for (Map.Entry<String, NDArray> entry : parameters.entrySet()) {
            String name = entry.getKey();
            NDArray full = entry.getValue();
            NDArray own = block.getParameters().get(name).getArray();
            try (NDArray gradient = own.getGradient()) {
                NoGradient.run(() -> gradient.copyTo(own)); // to be gathered as a parameter is
            }
            NDArray along = TestArrays.random(manager, ScalarType.FLOAT64, full.getShape(), 5);
            double expected = block.full(name, manager).mul(along).sum().getDouble();
            NDArray by = along.mul(manager.create(step));
            block.setFull(name, full.add(by));
            double above = sum(block, x, divided);
            block.setFull(name, full.sub(by));
            double below = sum(block, x, divided);
            block.setFull(name, full);
            assertTrue(Math.abs(expected) > 1e-3, name);
            double tolerance = 1e-8 * (1 + Math.abs(expected));
            assertEquals(expected, (above - below) / (2 * step), tolerance, block + ", " + name);
        }
    }

    /** Returns a loss of this rank's output. */
    private static NDArray tanh(ShardedBlock block, NDArray x, boolean divided, boolean training) {
        NDManager manager = x.getManager();
        NDList in = new NDList(x);
        NDArray y = block.forward(new ParameterStore(manager, false), in, training).get(0);
        long seed = divided ? 10 + block.group().rank() : 10;
        NDArray by = TestArrays.random(manager, ScalarType.FLOAT64, y.getShape(), seed);
        return y.tanh().mul(by).sum();
    }

    /** Returns the loss of all ranks. */
    private static double sum(ShardedBlock block, NDArray x, boolean divided) {
        return NoGradient.get(
                () -> {
                    NDArray own = tanh(block, x, divided, false);
                    return divided
                            ? DifferentiableCollectives.allReduce(own, block.group()).getDouble()
                            : own.getDouble();
                });
    }

    /** The first pass creates gradients of float64 parameters, and the second adds to them. */
    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void gradientsOfConvertedParametersAddUp(boolean sequence) {
        onTwoRanks(
                sequence,
                (net, manager) -> {
                    List<double[]> once = gradients(net, manager, ScalarType.FLOAT32);
                    List<double[]> twice = gradients(net, manager, ScalarType.FLOAT32);
                    List<double[]> all = gradients(net, manager, ScalarType.FLOAT64);
                    for (int i = 0; i < once.size(); i++) {
                        for (int k = 0; k < once.get(i).length; k++) {
                            double value = once.get(i)[k];
                            assertEquals(2 * value, twice.get(i)[k]);
                            double exact = all.get(i)[k] - twice.get(i)[k];
                            assertEquals(exact, value, 1e-4 * (1 + Math.abs(exact)));
                        }
                    }
                });
    }

    /** Returns the gradients of all parameters after another pass with inputs of a type. */
    private static List<double[]> gradients(Net net, NDManager manager, ScalarType type) {
        try (GradientScope scope = GradientScope.open()) {
            NDArray whole = input(manager, new Shape(8, SIZE));
            NDArray x = Torch.cast(part(whole, net.group, net.sequence), type);
            x.setRequiresGradient(true);
            NDArray y = net.forward(new ParameterStore(manager, false), x.add(x), true);
            assertEquals(type, Torch.scalarType(y));
            scope.backward(y.square().sum());
        }
        List<double[]> gradients = new ArrayList<>();
        for (ShardedBlock block : net.blocks.values()) {
            for (Parameter parameter : block.getParameters().values()) {
                try (NDArray gradient = parameter.getArray().getGradient()) {
                    gradients.add(gradient.toDoubleArray());
                }
            }
        }
        return gradients;
    }

    private static double[] array(List<Double> values) {
        return values.stream().mapToDouble(Double::doubleValue).toArray();
    }

    /** 4 ranks save; 1 and 2 ranks load, initialised or not. */
    /** Initialisation on ranks that share libtorch's generator, as threads do. */
    @Test
    void aSeedGivesTheSameWeightsForAnyNumberOfRanks() {
        Map<String, double[]> expected = null;
        for (int ranks : new int[] {1, 2, 4}) {
            Engine.getEngine("PyTorch-P2P").setRandomSeed(5);
            List<ProcessGroup> groups = ProcessGroups.local(ranks);
            Map<String, double[]> found;
            try {
                found = ProcessGroups.run(groups, ShardedBlocksTest::initialized).get(0);
            } finally {
                groups.forEach(ProcessGroup::destroy);
            }
            if (expected == null) {
                expected = found;
            }
            assertEquals(expected.keySet(), found.keySet());
            expected.forEach((name, values) -> assertArrayEquals(values, found.get(name), 0, name));
        }
    }

    private static Map<String, double[]> initialized(ProcessGroup group) {
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            Net net = new Net(group, false);
            net.initialize(manager, new Shape(8, SIZE));
            return net.full(manager);
        }
    }

    @Test
    void checkpointsDoNotDependOnTheNumberOfRanks() {
        Shape shape = new Shape(8, SIZE);
        Map<String, byte[]> saved = new LinkedHashMap<>();
        Map<String, double[]> expected = new LinkedHashMap<>();
        List<ProcessGroup> four = ProcessGroups.local(4);
        try {
            ProcessGroups.run(
                    four,
                    group -> {
                        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                            Net net = new Net(group, true);
                            net.initialize(manager, shape);
                            for (Map.Entry<String, ShardedBlock> block : net.blocks.entrySet()) {
                                ByteArrayOutputStream bytes = new ByteArrayOutputStream();
                                block.getValue().saveParameters(new DataOutputStream(bytes));
                                synchronized (saved) {
                                    byte[] before = saved.put(block.getKey(), bytes.toByteArray());
                                    assertTrue(before == null || before.length == bytes.size());
                                }
                            }
                            Map<String, double[]> full = net.full(manager);
                            synchronized (expected) {
                                expected.putAll(full);
                            }
                        }
                        return null;
                    });
        } finally {
            four.forEach(ProcessGroup::destroy);
        }
        for (int ranks : new int[] {1, 2}) {
            for (boolean initialized : new boolean[] {false, true}) {
                List<ProcessGroup> groups = ProcessGroups.local(ranks);
                try {
                    ProcessGroups.run(
                            groups,
                            group -> {
                                load(group, shape, initialized, saved, expected);
                                return null;
                            });
                } finally {
                    groups.forEach(ProcessGroup::destroy);
                }
            }
        }
    }

    private static void load(
            ProcessGroup group,
            Shape shape,
            boolean initialized,
            Map<String, byte[]> saved,
            Map<String, double[]> expected)
            throws Exception {
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            Net net = new Net(group, true);
            if (initialized) {
                net.initialize(manager, shape);
            }
            for (Map.Entry<String, ShardedBlock> block : net.blocks.entrySet()) {
                byte[] bytes = saved.get(block.getKey());
                block.getValue()
                        .loadParameters(
                                manager, new DataInputStream(new ByteArrayInputStream(bytes)));
            }
            Map<String, double[]> full = net.full(manager);
            assertEquals(expected.keySet(), full.keySet());
            expected.forEach((name, values) -> assertArrayEquals(values, full.get(name), name));
        }
    }

    @Test
    void namesWhatCannotBeDivided() {
        List<ProcessGroup> groups = ProcessGroups.local(2);
        try {
            ProcessGroup group = groups.get(0);
            IllegalArgumentException units =
                    assertThrows(
                            IllegalArgumentException.class,
                            () ->
                                    ColumnParallelLinear.builder()
                                            .setGroup(group)
                                            .setUnits(7)
                                            .build());
            assertTrue(
                    units.getMessage()
                            .startsWith("ColumnParallelLinear: the units (7) must be divisible by"),
                    units.getMessage());
            IllegalArgumentException none =
                    assertThrows(
                            IllegalArgumentException.class,
                            () -> ParallelMlp.builder().setHidden(8).build());
            assertTrue(none.getMessage().contains("setGroup"), none.getMessage());
            assertThrows(
                    IllegalArgumentException.class,
                    () -> RowParallelLinear.builder().setGroup(group).build());
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }
}
