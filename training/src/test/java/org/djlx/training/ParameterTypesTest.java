// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.LambdaBlock;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.nn.norm.BatchNorm;
import ai.djl.training.GradientCollector;
import ai.djl.training.ParameterStore;
import ai.djl.training.Trainer;
import ai.djl.training.evaluator.Evaluator;
import ai.djl.training.initializer.Initializer;
import ai.djl.training.listener.EvaluatorTrainingListener;
import ai.djl.training.listener.TrainingListener.BatchData;
import ai.djl.training.loss.Loss;
import ai.djl.util.PairList;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Supplier;
import java.util.stream.Stream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.engine.P2pEngine;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.djlx.training.checkpoint.CheckpointManager;
import org.djlx.training.checkpoint.TrainingProgress;
import org.djlx.training.strategy.FullyShard;
import org.djlx.training.strategy.GradientCompression;
import org.djlx.training.strategy.GradientHook;
import org.djlx.training.strategy.PowerSgd;
import org.djlx.training.strategy.ShardingStrategy;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;

/**
 * Parameters, data, predictions and gradients of other types than float32, most of 16 bits. DJL's
 * engine ends the JVM if it is to create bfloat16 arrays.
 */
@Timeout(120)
class ParameterTypesTest {

    private static final int STEPS = 4;
    private static final int ROWS = 6;

    /** Passes its input on, and does not use its layer. */
    private static final class Spare extends AbstractBlock {

        private final Block layer = addChildBlock("spare", Linear.builder().setUnits(3).build());

        @Override
        protected NDList forwardInternal(
                ParameterStore store,
                NDList inputs,
                boolean training,
                PairList<String, Object> params) {
            return inputs;
        }

        @Override
        protected void initializeChildBlocks(NDManager manager, DataType type, Shape... shapes) {
            layer.initialize(manager, type, shapes);
        }

        @Override
        public Shape[] getOutputShapes(Shape[] shapes) {
            return shapes;
        }
    }

    private static Block layers(Block... between) {
        SequentialBlock block = new SequentialBlock().add(Linear.builder().setUnits(8).build());
        Stream.of(between).forEach(block::add);
        return block.add(Activation::tanh)
                .add(Linear.builder().setUnits(Training.CLASSES).build())
                .add(new Spare());
    }

    /** Has a block create its parameters in a type, as a program does for one that DJL lacks. */
    private static void create(Block block, ScalarType type) {
        block.setInitializer(Training.weights(3), Parameter.Type.WEIGHT);
        for (Parameter parameter : block.getParameters().values()) {
            Initializer own = parameter.getInitializer();
            parameter.setInitializer(
                    (manager, shape, none) ->
                            Torch.cast(own.initialize(manager, shape, DataType.FLOAT32), type));
        }
    }

    private static DataParallelConfig config(String optimizer) {
        DataParallelConfig config = new DataParallelConfig(Training.loss());
        config.optOptimizer(Training.optimizer(optimizer));
        return config;
    }

    private interface Body {
        void run(Trainer trainer) throws Exception;
    }

    private static List<float[]> train(
            DataParallelConfig config, Block block, ScalarType type, Body body) throws Exception {
        create(block, type);
        try (Model model = Model.newInstance("narrow", P2pEngine.NAME)) {
            model.setBlock(block);
            try (Trainer trainer = model.newTrainer(config)) {
                trainer.initialize(new Shape(1, Training.FEATURES));
                body.run(trainer);
            }
            return values(block, type);
        }
    }

    private static List<float[]> values(Block block, ScalarType type) {
        List<float[]> values = new ArrayList<>();
        for (Parameter parameter : block.getParameters().values()) {
            assertEquals(type, Torch.scalarType(parameter.getArray()));
            values.add(NoGradient.get(() -> floats(parameter.getArray())));
        }
        return values;
    }

    private static float[] floats(NDArray array) {
        try (NDArray wide = Torch.cast(array, ScalarType.FLOAT32)) {
            return wide.toFloatArray();
        }
    }

    private static NDArray rows(NDManager manager, int step, int rows, ScalarType type) {
        NDArray x = manager.arange(rows * Training.FEATURES).add(100 * step).mul(0.7f).sin();
        return Torch.cast(x.reshape(rows, Training.FEATURES), type);
    }

    private static void pass(Trainer trainer, NDArray x) {
        try (GradientCollector collector = trainer.newGradientCollector()) {
            collector.backward(trainer.forward(new NDList(x)).head().square().mean());
        }
    }

    /** The batches become smaller than the number of ranks. */
    private static void steps(Trainer trainer, ScalarType type) {
        for (int step = 0; step < STEPS; step++) {
            try (NDManager manager = trainer.getManager().newSubManager()) {
                pass(trainer, rows(manager, step, ROWS - step, type));
                pass(trainer, rows(manager, step + STEPS, Math.max(1, ROWS - 2 * step), type));
            }
            if (step > 0) {
                ((DataParallelTrainer) trainer).clipGradNorm(1e9);
                ((DataParallelTrainer) trainer).clipGradValue(100);
            }
            trainer.step();
        }
    }

    private static void assertNear(List<float[]> expected, List<float[]> actual, float tolerance) {
        assertEquals(expected.size(), actual.size());
        for (int i = 0; i < expected.size(); i++) {
            assertArrayEquals(expected.get(i), actual.get(i), tolerance, "parameter " + i);
        }
    }

    private static float farthest(List<float[]> one, List<float[]> other) {
        float most = 0;
        for (int i = 0; i < one.size(); i++) {
            for (int k = 0; k < one.get(i).length; k++) {
                most = Math.max(most, Math.abs(one.get(i)[k] - other.get(i)[k]));
            }
        }
        return most;
    }

    @ParameterizedTest
    @CsvSource({
        "BFLOAT16, NO_SHARD, sgd, 1",
        "BFLOAT16, NO_SHARD, momentum, 4",
        "BFLOAT16, NO_SHARD, adam, 1",
        "BFLOAT16, NO_SHARD, adamW, 4",
        "BFLOAT16, SHARD_OPTIMIZER, adam, 2",
        "BFLOAT16, FULL_SHARD, momentum, 2",
        "BFLOAT16, FULL_SHARD, adam, 4",
        "FLOAT16, NO_SHARD, adam, 4",
        "FLOAT16, FULL_SHARD, adam, 2"
    })
    void trainsAsInFloat32(ScalarType type, ShardingStrategy sharding, String optimizer, int ranks)
            throws Exception {
        List<List<float[]>> all = new ArrayList<>();
        for (ScalarType of : new ScalarType[] {ScalarType.FLOAT32, type}) {
            DataParallelConfig config = config(optimizer).optShardingStrategy(sharding);
            Block block =
                    sharding == ShardingStrategy.FULL_SHARD
                            ? FullyShard.apply(layers(), each -> each instanceof Linear)
                            : layers();
            all.add(train(config.optRanks(ranks), block, of, trainer -> steps(trainer, of)));
        }
        List<float[]> begin = train(config(optimizer), layers(), type, trainer -> {});
        float moved = farthest(begin, all.get(0));
        float rounded = farthest(all.get(0), all.get(1));
        assertTrue(rounded < moved / 8, () -> rounded + " of " + moved);
        assertArrayEquals(begin.get(4), all.get(1).get(4), "the layer that is not used");
    }

    /** Hooks do not compress gradients of 16 bits. */
    @Test
    void hooksReduceGradients() throws Exception {
        GradientHook[] hooks = {
            GradientCompression.NONE, GradientCompression.BFLOAT16, new PowerSgd(1, 0)
        };
        List<List<float[]>> all = new ArrayList<>();
        for (GradientHook hook : hooks) {
            DataParallelConfig config = config("sgd").optRanks(2).optGradientHook(hook);
            ScalarType type = ScalarType.BFLOAT16;
            all.add(train(config, layers(), type, trainer -> steps(trainer, type)));
            assertNear(all.get(0), all.get(all.size() - 1), 0);
        }
    }

    private static <T> List<T> onTwo(ProcessGroups.RankBody<T> body) {
        List<ProcessGroup> groups = ProcessGroups.local(2);
        try {
            return ProcessGroups.run(groups, body);
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    /** The second process has no batch in the last steps, which need its batch normalisation. */
    @ParameterizedTest
    @EnumSource(ShardingStrategy.class)
    void processesTrainOnUnevenBatches(ShardingStrategy sharding) throws Exception {
        List<List<float[]>> all = new ArrayList<>();
        for (ScalarType type : new ScalarType[] {ScalarType.FLOAT32, ScalarType.BFLOAT16}) {
            List<List<float[]>> own =
                    onTwo(
                            group ->
                                    train(
                                            config("sgd")
                                                    .optProcessGroup(group)
                                                    .optJoin(true)
                                                    .optShardingStrategy(sharding),
                                            layers(BatchNorm.builder().build()),
                                            type,
                                            trainer -> {
                                                for (int i = 0; i < 4 - 2 * group.rank(); i++) {
                                                    NDManager manager = trainer.getManager();
                                                    pass(trainer, rows(manager, i, ROWS, type));
                                                    trainer.step();
                                                }
                                                ((DataParallelTrainer) trainer).join();
                                            }));
            assertNear(own.get(0), own.get(1), 0);
            all.add(own.get(0));
        }
        assertNear(all.get(0), all.get(1), 2e-2f);
    }

    /** More rows of a rank than float16 counts. */
    @ParameterizedTest
    @EnumSource(names = {"FLOAT16", "FLOAT64"})
    void statisticsOfManyRowsAreExact(ScalarType type) throws Exception {
        List<List<float[]>> all = new ArrayList<>();
        for (ScalarType of : new ScalarType[] {ScalarType.FLOAT32, type}) {
            all.add(
                    train(
                            config("sgd").optRanks(3),
                            BatchNorm.builder().build(),
                            of,
                            trainer -> {
                                for (int rows : new int[] {200_001, 2, 301}) {
                                    pass(trainer, rows(trainer.getManager(), 1, rows, of).add(1));
                                    trainer.step();
                                }
                            }));
        }
        assertNear(all.get(0), all.get(1), 2e-3f);
    }

    /** A rank's sum of the gradients of a channel is infinite in float16. */
    @Test
    void gradientsOfManyRowsAreSummedInFloat32() throws Exception {
        BatchNorm norm = BatchNorm.builder().optCenter(false).optScale(false).build();
        Block block = new SequentialBlock().add(Linear.builder().setUnits(2).build()).add(norm);
        List<float[]> values =
                train(
                        config("sgd").optRanks(2),
                        block,
                        ScalarType.FLOAT16,
                        trainer -> {
                            NDArray x = rows(trainer.getManager(), 1, 200_001, ScalarType.FLOAT16);
                            try (GradientCollector collector = trainer.newGradientCollector()) {
                                NDArray y = trainer.forward(new NDList(x)).head();
                                collector.backward(y.add(y.pow(3).mul(0.01f)).sum());
                            }
                            trainer.step();
                        });
        for (float value : values.get(0)) {
            assertTrue(Float.isFinite(value), () -> "a weight is " + value);
        }
    }

    /** Returns the rows, and their mean, which has no batch: ranks average it. */
    private static Block withMean() {
        return new LambdaBlock(
                inputs -> new NDList(inputs.head(), inputs.head().mean(new int[] {0})));
    }

    @ParameterizedTest
    @EnumSource(names = {"FLOAT16", "BFLOAT16", "FLOAT32"})
    void predictionsWithoutABatchAreAveraged(ScalarType type) throws Exception {
        Block block = new SequentialBlock().add(layers()).add(withMean());
        train(
                config("sgd").optRanks(2),
                block,
                type,
                trainer -> {
                    NDArray x = rows(trainer.getManager(), 1, 4, type);
                    NDList y = NoGradient.get(() -> trainer.forward(new NDList(x)));
                    float[] mean = floats(y.head().mean(new int[] {0}));
                    assertArrayEquals(mean, floats(y.get(1)), 1e-2f);
                });
    }

    /** Programs of DJL's engine PyTorch, of which one rank does not use a parameter. */
    @Test
    void synchronizerSetsGradientsOfUnusedParameters() {
        List<List<float[]>> all =
                onTwo(
                        group -> {
                            Block block = layers();
                            create(block, ScalarType.BFLOAT16);
                            try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                                Shape shape = new Shape(1, Training.FEATURES);
                                block.initialize(manager, DataType.FLOAT32, shape);
                                GradientSynchronizer.broadcastParameters(block, group);
                                new GradientSynchronizer(group, GradientReduction.SUM)
                                        .synchronize(block);
                                List<float[]> gradients = new ArrayList<>();
                                for (Parameter parameter : block.getParameters().values()) {
                                    NDArray gradient = parameter.getArray().getGradient();
                                    assertEquals(ScalarType.BFLOAT16, Torch.scalarType(gradient));
                                    gradients.add(floats(gradient));
                                }
                                return gradients;
                            }
                        });
        all.get(0).forEach(gradient -> assertArrayEquals(new float[gradient.length], gradient));
    }

    /** Keeps all predictions, in the order in which it gets them. */
    private static final class Kept extends Evaluator {

        private final List<float[]> predictions = new ArrayList<>();

        Kept() {
            super("kept");
        }

        @Override
        public NDArray evaluate(NDList labels, NDList all) {
            return all.head();
        }

        @Override
        public void addAccumulator(String key) {}

        @Override
        public void updateAccumulator(String key, NDList labels, NDList all) {
            predictions.add(floats(all.head()));
        }

        @Override
        public void resetAccumulator(String key) {}

        @Override
        public float getAccumulator(String key) {
            return predictions.size();
        }
    }

    /** A mean square, which DJL's evaluators can read. */
    private static final class Square extends Loss {

        Square() {
            super("square");
        }

        @Override
        public NDArray evaluate(NDList labels, NDList predictions) {
            return Torch.cast(predictions.head(), ScalarType.FLOAT32).square().mean();
        }
    }

    @Test
    void evaluatorsGetThePredictionsOfAllProcesses() {
        List<float[]> sent = new ArrayList<>();
        List<List<float[]>> all =
                onTwo(
                        group -> {
                            Kept kept = new Kept();
                            DataParallelConfig config =
                                    new DataParallelConfig(new Square()).optProcessGroup(group);
                            config.optOptimizer(Training.optimizer("sgd"))
                                    .addEvaluator(kept)
                                    .addTrainingListeners(new EvaluatorTrainingListener());
                            train(
                                    config,
                                    layers(),
                                    ScalarType.BFLOAT16,
                                    trainer -> {
                                        NDManager manager = trainer.getManager();
                                        NDArray x =
                                                rows(manager, group.rank(), 3, ScalarType.BFLOAT16);
                                        NDList y = trainer.evaluate(new NDList(x));
                                        BatchData batch =
                                                new BatchData(
                                                        null,
                                                        new ConcurrentHashMap<>(),
                                                        new ConcurrentHashMap<>());
                                        batch.getLabels().put(x.getDevice(), new NDList(x));
                                        batch.getPredictions().put(x.getDevice(), y);
                                        trainer.notifyListeners(
                                                each -> each.onTrainingBegin(trainer));
                                        trainer.notifyListeners(
                                                each -> each.onValidationBatch(trainer, batch));
                                        trainer.notifyListeners(each -> each.onEpoch(trainer));
                                        if (group.rank() == 1) {
                                            sent.add(floats(y.head()));
                                        }
                                    });
                            return kept.predictions;
                        });
        for (List<float[]> own : all) {
            assertArrayEquals(sent.get(0), own.get(own.size() - 1));
        }
    }

    /** The state of the optimizer is float32. */
    @ParameterizedTest
    @EnumSource(ShardingStrategy.class)
    void checkpointsRestoreParametersAndState(ShardingStrategy sharding, @TempDir Path directory)
            throws Exception {
        Supplier<DataParallelConfig> config =
                () -> config("adam").optRanks(2).optShardingStrategy(sharding);
        CheckpointManager checkpoints =
                CheckpointManager.builder().setDirectory(directory).optEvery(1).build();
        ScalarType type = ScalarType.BFLOAT16;
        List<float[]> expected =
                train(
                        config.get(),
                        layers(),
                        type,
                        trainer -> {
                            steps(trainer, type);
                            checkpoints.save(trainer, new TrainingProgress(4, 0, 4));
                            steps(trainer, type);
                        });
        List<float[]> actual =
                train(
                        config.get(),
                        layers(),
                        type,
                        trainer -> {
                            checkpoints.restore(trainer);
                            steps(trainer, type);
                        });
        assertNear(expected, actual, 0);
    }

    /** DJL's file of a bfloat16 parameter ends the JVM that reads it. */
    @Test
    void filesOfDjlAreRefused(@TempDir Path directory) throws Exception {
        try (Model model = Model.newInstance("narrow", P2pEngine.NAME)) {
            model.setBlock(layers());
            create(model.getBlock(), ScalarType.BFLOAT16);
            NDManager manager = model.getNDManager();
            model.getBlock().initialize(manager, DataType.FLOAT32, new Shape(1, 6));
            String message =
                    assertThrows(
                                    IllegalArgumentException.class,
                                    () -> model.save(directory, "narrow"))
                            .getMessage();
            assertTrue(message.contains("'weight' of Linear is BFLOAT16"), message);
        }
        try (Stream<Path> files = Files.list(directory)) {
            assertEquals(0, files.count());
        }
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 2})
    void dataTypeOfTheModelIsRefused(int ranks) {
        try (Model model = Model.newInstance("narrow", P2pEngine.NAME)) {
            model.setBlock(layers());
            model.setDataType(DataType.BFLOAT16);
            try (Trainer trainer = model.newTrainer(config("sgd").optRanks(ranks))) {
                Shape shape = new Shape(1, Training.FEATURES);
                String message =
                        assertThrows(
                                        IllegalArgumentException.class,
                                        () -> trainer.initialize(shape))
                                .getMessage();
                assertTrue(message.contains("cannot create parameters of BFLOAT16"), message);
            }
        }
    }
}
