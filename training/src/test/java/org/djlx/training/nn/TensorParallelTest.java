// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.nn;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.nn.transformer.ScaledDotProductAttentionBlock;
import ai.djl.training.ParameterStore;
import ai.djl.util.Pair;
import ai.djl.util.PairList;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.TestArrays;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.djlx.training.nn.TensorParallel.Style;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Blocks that know nothing of ranks, divided by a plan, against the same blocks undivided. */
class TensorParallelTest {

    private static final Shape INPUT = new Shape(2, 6, 16);

    private static final Map<String, Style> PLAN =
            Map.of(
                    "*.query", Style.COLUMN,
                    "*.key", Style.COLUMN,
                    "*.value", Style.COLUMN,
                    "*.output", Style.ROW,
                    "02hidden", Style.COLUMN,
                    "last", Style.ROW);

    /** Attention with heads of 4 values, as a user might write it. */
    private static final class Attention extends AbstractBlock {

        private final Linear query = addChildBlock("query", linear(16, true));
        private final Linear key = addChildBlock("key", linear(16, false));
        private final Block value = addChildBlock("value", linear(16, true));
        private final Linear output = addChildBlock("output", linear(16, true));

        @Override
        protected void initializeChildBlocks(NDManager manager, DataType type, Shape... shapes) {
            query.initialize(manager, type, shapes);
            key.initialize(manager, type, shapes);
            value.initialize(manager, type, shapes);
            output.initialize(manager, type, value.getOutputShapes(shapes));
        }

        private NDArray heads(Block of, ParameterStore store, NDList x, boolean training) {
            NDArray y = of.forward(store, x, training).singletonOrThrow();
            return y.reshape(x.head().getShape().get(0), -1, y.getShape().get(2) / 4, 4)
                    .transpose(0, 2, 1, 3);
        }

        @Override
        protected NDList forwardInternal(
                ParameterStore store, NDList x, boolean training, PairList<String, Object> params) {
            NDArray y =
                    Torch.attention(
                            heads(query, store, x, training),
                            heads(key, store, x, training),
                            heads(value, store, x, training),
                            true);
            Shape shape = y.getShape();
            NDArray joined =
                    y.transpose(0, 2, 1, 3)
                            .reshape(shape.get(0), shape.get(2), shape.get(1) * shape.get(3));
            return output.forward(store, new NDList(joined), training);
        }

        @Override
        public Shape[] getOutputShapes(Shape[] shapes) {
            return shapes;
        }
    }

    /** The attention, then an MLP. */
    private static final class Layer extends AbstractBlock {

        private final Attention attention = addChildBlock("attention", new Attention());
        private final Linear hidden = addChildBlock("hidden", linear(32, true));
        private final Linear last = addChildBlock("last", linear(16, false));

        @Override
        protected void initializeChildBlocks(NDManager manager, DataType type, Shape... shapes) {
            attention.initialize(manager, type, shapes);
            hidden.initialize(manager, type, shapes);
            last.initialize(manager, type, hidden.getOutputShapes(shapes));
        }

        @Override
        protected NDList forwardInternal(
                ParameterStore store, NDList x, boolean training, PairList<String, Object> params) {
            NDList attended = attention.forward(store, x, training);
            NDArray inner = hidden.forward(store, attended, training).singletonOrThrow();
            return last.forward(store, new NDList(inner.tanh()), training);
        }

        @Override
        public Shape[] getOutputShapes(Shape[] shapes) {
            return shapes;
        }
    }

    private static Linear linear(long units, boolean bias) {
        return Linear.builder().setUnits(units).optBias(bias).build();
    }

    private static void run(int ranks, ProcessGroups.RankBody<Void> rank) {
        List<ProcessGroup> groups = ProcessGroups.local(ranks);
        try {
            ProcessGroups.run(groups, rank);
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    /** Sets random numbers that depend on the number of values alone. */
    private static void setInitializer(Block block) {
        block.setInitializer(
                (manager, shape, type) -> {
                    Random random = new Random(shape.size());
                    double[] values = random.doubles(shape.size(), -0.5, 0.5).toArray();
                    return manager.create(values, shape);
                },
                parameter -> true);
    }

    private static List<ShardedBlock> divided(Block block) {
        List<ShardedBlock> all = new ArrayList<>();
        for (Block child : block.getChildren().values()) {
            if (child instanceof ShardedBlock each) {
                all.add(each);
            } else {
                all.addAll(divided(child));
            }
        }
        return all;
    }

    /** Returns the output and the gradients of a pass, of full parameters by name and order. */
    private static Map<String, double[]> pass(Block block, NDManager manager) {
        Map<String, double[]> values = new LinkedHashMap<>();
        try (GradientScope scope = GradientScope.open()) {
            NDArray x = TestArrays.random(manager, ScalarType.FLOAT64, INPUT, 3);
            x.setRequiresGradient(true);
            ParameterStore store = new ParameterStore(manager, false);
            NDArray y = block.forward(store, new NDList(x), true).singletonOrThrow();
            NDArray gradient = TestArrays.random(manager, ScalarType.FLOAT64, INPUT, 4);
            scope.backward(List.of(y), List.of(gradient));
            values.put("output", NoGradient.get(() -> TestArrays.values(y)));
            values.put("input", TestArrays.values(x.getGradient()));
        }
        List<ShardedBlock> divided = divided(block);
        if (divided.isEmpty()) {
            block.getParameters()
                    .forEach(
                            named ->
                                    values.put(
                                            values.size() + "",
                                            TestArrays.values(
                                                    named.getValue().getArray().getGradient())));
        }
        for (ShardedBlock each : divided) {
            for (String name : each.getDirectParameters().keys()) {
                NDArray array = each.getDirectParameters().get(name).getArray();
                NoGradient.run(() -> array.getGradient().copyTo(array));
                values.put(values.size() + "", TestArrays.values(each.full(name, manager)));
            }
        }
        return values;
    }

    @ParameterizedTest
    @CsvSource({"1, true", "2, true", "2, false", "4, true", "4, false"})
    void computesAsTheUndividedBlock(int ranks, boolean initialised) {
        run(
                ranks,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                        Layer plain = new Layer();
                        setInitializer(plain);
                        plain.initialize(manager, DataType.FLOAT64, INPUT);
                        Map<String, double[]> expected = pass(plain, manager);
                        Layer layer = new Layer();
                        setInitializer(layer);
                        if (initialised) {
                            layer.initialize(manager, DataType.FLOAT64, INPUT);
                        }
                        TensorParallel.apply(layer, PLAN, group);
                        layer.initialize(manager, DataType.FLOAT64, INPUT);
                        assertEquals(6, divided(layer).size());
                        Linear query = (Linear) layer.attention.getChildren().valueAt(0);
                        assertEquals(query, layer.attention.query);
                        Shape part = query.getParameters().valueAt(0).getArray().getShape();
                        assertEquals(new Shape(16, 16 / ranks), part);
                        Map<String, double[]> actual = pass(layer, manager);
                        assertEquals(expected.keySet(), actual.keySet());
                        expected.forEach(
                                (name, values) ->
                                        assertArrayEquals(values, actual.get(name), 1e-12, name));
                    }
                    return null;
                });
    }

    @ParameterizedTest
    @CsvSource({"true", "false"})
    void keepsFrozenParametersFrozen(boolean initialised) {
        run(
                2,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                        Layer layer = new Layer();
                        setInitializer(layer);
                        if (initialised) {
                            layer.initialize(manager, DataType.FLOAT64, INPUT);
                        }
                        layer.hidden.freezeParameters(true);
                        TensorParallel.apply(layer, PLAN, group);
                        layer.initialize(manager, DataType.FLOAT64, INPUT);
                        for (Pair<String, Parameter> each : layer.getParameters()) {
                            boolean learns = !each.getKey().contains("hidden");
                            Parameter parameter = each.getValue();
                            assertEquals(learns, parameter.requiresGradient(), each.getKey());
                            assertEquals(learns, Torch.requiresGradient(parameter.getArray()));
                        }
                    }
                    return null;
                });
    }

    @Test
    void dividesASequentialBlock() {
        run(
                2,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                        SequentialBlock block =
                                new SequentialBlock().add(linear(8, true)).add(linear(16, true));
                        setInitializer(block);
                        block.initialize(manager, DataType.FLOAT64, INPUT);
                        NDList x =
                                new NDList(
                                        TestArrays.random(manager, ScalarType.FLOAT64, INPUT, 3));
                        ParameterStore store = new ParameterStore(manager, false);
                        NDArray expected = block.forward(store, x, false).singletonOrThrow();
                        TensorParallel.apply(
                                block, Map.of("01*", Style.COLUMN, "02Linear", Style.ROW), group);
                        NDArray actual = block.forward(store, x, false).singletonOrThrow();
                        assertArrayEquals(
                                TestArrays.values(expected), TestArrays.values(actual), 1e-12);
                    }
                    return null;
                });
    }

    /** DJL can neither create nor read bfloat16 arrays: the file has float32 numbers. */
    @Test
    void savesAndLoadsBfloat16() {
        run(
                2,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                        Linear layer = linear(4, true);
                        layer.setInitializer(
                                (own, shape, type) ->
                                        TestArrays.random(own, ScalarType.BFLOAT16, shape, 3),
                                parameter -> true);
                        layer.initialize(manager, DataType.FLOAT32, INPUT);
                        SequentialBlock block = new SequentialBlock().add(layer);
                        TensorParallel.apply(block, Map.of("*", Style.COLUMN), group);
                        block.initialize(manager, DataType.FLOAT32, INPUT);
                        ShardedBlock part = divided(block).get(0);
                        NDArray weight = part.full("weight", manager);
                        assertEquals(ScalarType.BFLOAT16, Torch.scalarType(weight));
                        ByteArrayOutputStream file = new ByteArrayOutputStream();
                        part.saveParameters(new DataOutputStream(file));
                        ColumnParallelLinear other =
                                ColumnParallelLinear.builder().setGroup(group).setUnits(4).build();
                        part.setFull("weight", Torch.zerosLike(weight));
                        for (ShardedBlock each : List.of(part, other)) {
                            ByteArrayInputStream bytes =
                                    new ByteArrayInputStream(file.toByteArray());
                            each.loadParameters(manager, new DataInputStream(bytes));
                            assertArrayEquals(
                                    TestArrays.values(weight),
                                    TestArrays.values(each.full("weight", manager)));
                        }
                    }
                    return null;
                });
    }

    @Test
    void refusesToBeInitialisedInBfloat16() {
        run(
                2,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                        Block block =
                                ColumnParallelLinear.builder().setGroup(group).setUnits(4).build();
                        IllegalArgumentException e =
                                assertThrows(
                                        IllegalArgumentException.class,
                                        () -> block.initialize(manager, DataType.BFLOAT16, INPUT));
                        assertTrue(
                                e.getMessage().contains("cannot create parameters of BFLOAT16"),
                                e.getMessage());
                    }
                    return null;
                });
    }

    private static void assertRefused(
            ProcessGroup group, Block block, Map<String, Style> plan, String reason) {
        int before = block.getParameters().size();
        String message =
                assertThrows(
                                IllegalArgumentException.class,
                                () -> TensorParallel.apply(block, plan, group))
                        .getMessage();
        assertTrue(message.contains(reason), message);
        assertEquals(before, block.getParameters().size());
        assertTrue(divided(block).isEmpty());
    }

    @Test
    void refusesPlansThatDoNotFit() {
        run(
                3,
                group -> {
                    assertRefused(
                            group,
                            new Layer(),
                            Map.of("*.query", Style.COLUMN),
                            "the units (16) must be divisible by the 3 ranks");
                    assertRefused(
                            group,
                            new Layer(),
                            Map.of("hidden", Style.COLUMN, "*.quary", Style.COLUMN),
                            "a name of [*.quary]; there are [attention.query, attention.key");
                    assertRefused(
                            group,
                            new Layer(),
                            Map.of("*.query", Style.COLUMN, "attention*", Style.ROW),
                            "by one style");
                    assertRefused(
                            group,
                            ScaledDotProductAttentionBlock.builder()
                                    .setEmbeddingSize(12)
                                    .setHeadCount(3)
                                    .build(),
                            Map.of("queryProjection", Style.COLUMN),
                            "the number of heads of DJL's attention is fixed");
                    assertRefused(group, new Layer(), null, "null");
                    return null;
                });
    }

    /** A block that keeps its layers in a list. */
    private static final class Hidden extends AbstractBlock {

        private final List<Linear> layers = List.of(addChildBlock("only", linear(16, true)));

        @Override
        protected void initializeChildBlocks(NDManager manager, DataType type, Shape... shapes) {
            layers.get(0).initialize(manager, type, shapes);
        }

        @Override
        protected NDList forwardInternal(
                ParameterStore store, NDList x, boolean training, PairList<String, Object> params) {
            return layers.get(0).forward(store, x, training);
        }

        @Override
        public Shape[] getOutputShapes(Shape[] shapes) {
            return shapes;
        }
    }

    @Test
    void aLayerThatCouldNotBeReplacedThrows() {
        run(
                2,
                group -> {
                    Hidden block =
                            TensorParallel.apply(new Hidden(), Map.of("only", Style.COLUMN), group);
                    try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                        String message =
                                assertThrows(
                                                IllegalStateException.class,
                                                () ->
                                                        block.initialize(
                                                                manager, DataType.FLOAT32, INPUT))
                                        .getMessage();
                        assertTrue(message.contains("its block still uses it"), message);
                    }
                    return null;
                });
    }
}
