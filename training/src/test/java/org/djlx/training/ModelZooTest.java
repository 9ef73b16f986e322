// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.basicmodelzoo.basic.Mlp;
import ai.djl.basicmodelzoo.cv.classification.ResNetV1;
import ai.djl.basicmodelzoo.cv.object_detection.ssd.SingleShotDetection;
import ai.djl.engine.EngineException;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.nn.core.Multiplication;
import ai.djl.nn.norm.BatchNorm;
import ai.djl.nn.norm.Dropout;
import ai.djl.nn.recurrent.LSTM;
import ai.djl.nn.transformer.BertBlock;
import ai.djl.nn.transformer.TransformerEncoderBlock;
import ai.djl.training.GradientCollector;
import ai.djl.training.ParameterStore;
import ai.djl.training.Trainer;
import ai.djl.training.initializer.Initializer;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.FixedPerVarTracker;
import ai.djl.training.tracker.Tracker;
import ai.djl.util.PairList;
import java.lang.reflect.Field;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.function.Consumer;
import java.util.function.Supplier;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.TestArrays;
import org.djlx.collectives.engine.P2pEngine;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.Torch;
import org.djlx.training.internal.SyncBatchNorm;
import org.djlx.training.precision.GradScaler;
import org.djlx.training.precision.MixedPrecisionPolicy;
import org.djlx.training.strategy.ShardingStrategy;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/**
 * DJL's blocks on several ranks of a JVM, beside DJL's own engine on one device: only the name of
 * the engine differs. Batches are divided unevenly, and the last has fewer rows than ranks.
 */
@Timeout(300)
class ModelZooTest {

    private static final double TOLERANCE = 1e-4;
    private static final int[] BATCHES = {8, 6, 3};
    private static final Map<String, List<Double>> ALONE = new HashMap<>(); // by engine and model

    private interface Data {
        NDList of(NDManager manager, int rows, Random random);
    }

    private static NDArray normal(NDManager manager, Random random, long... sizes) {
        Shape shape = new Shape(sizes);
        float[] values = new float[(int) shape.size()];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) random.nextGaussian();
        }
        return manager.create(values, shape);
    }

    private static Block block(String name) {
        return switch (name) {
            case "mlp" -> new Mlp(12, 3, new int[] {8, 8});
            case "resnet18" ->
                    ResNetV1.builder()
                            .setImageShape(new Shape(3, 40, 40))
                            .setNumLayers(18)
                            .setOutSize(3)
                            .build();
            case "lstm" -> lstm(true);
            case "multiplication" -> // The predictions' second dimension is the batch.
                    Multiplication.builder().setUnits(BATCHES[0]).build();
            case "encoder" -> new TransformerEncoderBlock(8, 2, 16, 0f, Activation::relu);
            case "bert" ->
                    BertBlock.builder()
                            .setTokenDictionarySize(20)
                            .optEmbeddingSize(8)
                            .optTransformerBlockCount(2)
                            .optAttentionHeadCount(2)
                            .optHiddenSize(16)
                            .optHiddenDropoutProbability(0f)
                            .optMaxSequenceLength(4)
                            .build();
            case "ssd" ->
                    SingleShotDetection.builder()
                            .setNumClasses(1)
                            .setNumFeatures(1)
                            .optGlobalPool(true)
                            .setRatios(Collections.nCopies(3, List.of(1f, 2f, 0.5f)))
                            .setSizes(Collections.nCopies(3, List.of(0.3f, 0.5f)))
                            .setBaseNetwork(SingleShotDetection.getDownSamplingBlock(4))
                            .build();
            default -> throw new IllegalArgumentException(name);
        };
    }

    /** Sets the rates of all dropouts to 0; those of BertBlock's layers are a constant of DJL. */
    private static Block withoutDropout(Block block) throws ReflectiveOperationException {
        if (block instanceof Dropout) {
            Field rate = Dropout.class.getDeclaredField("rate");
            rate.setAccessible(true);
            rate.setFloat(block, 0);
        }
        for (Field field : block.getClass().getDeclaredFields()) {
            field.setAccessible(true);
            if (field.get(block) instanceof Dropout child) {
                withoutDropout(child); // Not all are children of their block.
            }
        }
        for (Block child : block.getChildren().values()) {
            withoutDropout(child);
        }
        return block;
    }

    private static Block lstm(boolean batchFirst) {
        return LSTM.builder().setStateSize(5).setNumLayers(1).optBatchFirst(batchFirst).build();
    }

    private static Data data(String name) {
        return switch (name) {
            case "mlp" -> (manager, rows, random) -> new NDList(normal(manager, random, rows, 12));
            case "resnet18" ->
                    (manager, rows, random) -> new NDList(normal(manager, random, rows, 3, 40, 40));
            case "ssd" ->
                    (manager, rows, random) -> new NDList(normal(manager, random, rows, 3, 16, 16));
            case "bert" ->
                    (manager, rows, random) -> {
                        NDArray ids = normal(manager, random, rows, 4).abs().mul(5);
                        NDArray tokens = ids.minimum(19).toType(DataType.INT64, false);
                        return new NDList(tokens, tokens.zerosLike(), tokens.onesLike());
                    };
            default -> (manager, rows, random) -> new NDList(normal(manager, random, rows, 4, 8));
        };
    }

    /** Trains on the batches twice, and returns the losses and then the largest parameter sums. */
    /** Returns the losses of a model on one device; trains it unless it has been. */
    private static List<Double> alone(String engine, String name, Block block) {
        return ALONE.computeIfAbsent(
                engine + " " + name, key -> train(engine, 1, block, data(name)));
    }

    private static List<Double> train(String engine, int ranks, Block block, Data data) {
        return train(engine, ranks, config -> {}, block, data, () -> {});
    }

    private static List<Double> train(
            String engine,
            int ranks,
            Consumer<DataParallelConfig> options,
            Block block,
            Data data,
            Runnable before) {
        List<Double> losses = new ArrayList<>();
        DataParallelConfig config = new DataParallelConfig(Training.loss());
        options.accept(config);
        // With larger steps a deep network of a batch of 3 multiplies roundings by thousands.
        Tracker rate = Tracker.fixed(block.getParameters().size() > 60 ? 1e-5f : 0.02f);
        config.optRanks(ranks).optBucketBytes(256);
        config.optOptimizer(Optimizer.sgd().setLearningRateTracker(rate).optMomentum(0.9f).build());
        Random random = new Random(3);
        Set<Parameter.Type> others = EnumSet.of(Parameter.Type.GAMMA, Parameter.Type.BETA);
        others.addAll(List.of(Parameter.Type.RUNNING_MEAN, Parameter.Type.RUNNING_VAR));
        Initializer weights =
                (manager, shape, type) -> {
                    float scale = (float) Math.sqrt((double) shape.get(0) / shape.size());
                    long[] sizes = shape.getShape();
                    return normal(manager, new Random(shape.size()), sizes).mul(scale);
                };
        block.setInitializer(weights, own -> !others.contains(own.getType()));
        try (Model model = Model.newInstance("model", engine)) {
            model.setBlock(block);
            try (Trainer trainer = model.newTrainer(config)) {
                NDManager manager = trainer.getManager();
                trainer.initialize(data.of(manager, 2, new Random(1)).getShapes());
                for (int turn = 0; turn < 2; turn++) {
                    for (int rows : BATCHES) {
                        try (GradientCollector collector = trainer.newGradientCollector()) {
                            NDList predictions = trainer.forward(data.of(manager, rows, random));
                            NDArray loss = null;
                            for (NDArray prediction : predictions) {
                                long[] sizes = prediction.getShape().getShape();
                                NDArray aim = normal(manager, new Random(9), sizes);
                                NDArray own = prediction.sub(aim).square().mean();
                                loss = loss == null ? own : loss.add(own);
                            }
                            losses.add((double) loss.getFloat());
                            before.run();
                            collector.backward(loss);
                        }
                        trainer.step();
                    }
                }
                NDList last = trainer.evaluate(data.of(manager, 5, random)); // with statistics
                losses.add((double) last.head().square().mean().getFloat());
            }
        }
        return losses;
    }

    @ParameterizedTest
    @CsvSource({
        "mlp, 1", "mlp, 2", "mlp, 4",
        "resnet18, 1", "resnet18, 2", "resnet18, 4",
        "lstm, 1", "lstm, 2", "lstm, 4",
        "encoder, 1", "encoder, 2", "encoder, 4",
        "bert, 1", "bert, 2", "bert, 4",
        "ssd, 1", "ssd, 2", "ssd, 4",
        "multiplication, 1", "multiplication, 2", "multiplication, 4"
    })
    void trainsAsOnOneDevice(String name, int ranks) throws Exception {
        Block plain = withoutDropout(block(name));
        Block own = withoutDropout(block(name));
        List<Double> expected;
        try (GradientScope kept = GradientScope.create()) { // DJL's collector frees BERT's factors
            expected = kept.within(() -> alone("PyTorch", name, plain));
        }
        assertNear(expected, train(P2pEngine.NAME, ranks, own, data(name)));
    }

    /** Attention in BertBlock closes the array of its scale before the backward pass. */
    @ParameterizedTest
    @ValueSource(ints = {1, 2, 4})
    void factorsOutliveGarbageCollection(int ranks) throws Exception {
        Block plain = withoutDropout(block("bert"));
        List<Double> expected = alone(P2pEngine.NAME, "bert", plain);
        Block own = withoutDropout(block("bert"));
        Runnable before = TestArrays::reuseFreedMemory;
        assertNear(expected, train(P2pEngine.NAME, ranks, config -> {}, own, data("bert"), before));
    }

    @ParameterizedTest
    @CsvSource({"mlp, 2", "resnet18, 2", "lstm, 2", "lstm, 4", "encoder, 2", "bert, 2"})
    void trainsFullySharded(String name, int ranks) throws Exception {
        List<Double> expected = alone(P2pEngine.NAME, name, withoutDropout(block(name)));
        List<Double> actual =
                train(
                        P2pEngine.NAME,
                        ranks,
                        config -> config.optShardingStrategy(ShardingStrategy.FULL_SHARD),
                        withoutDropout(block(name)),
                        data(name),
                        () -> {});
        assertNear(expected, actual);
    }

    /**
     * The first loss differs from float32's by no more than one rounding. Later losses come from
     * parameters of updates, in which each layer rounds. Without AVX-512, libtorch adds bfloat16
     * convolutions in bfloat16.
     */
    @ParameterizedTest
    @CsvSource({
        "mlp, BFLOAT16, 1",
        "mlp, BFLOAT16, 2",
        "mlp, FLOAT16, 2",
        "resnet18, BFLOAT16, 2",
        "resnet18, FLOAT16, 1",
        "encoder, BFLOAT16, 2",
        "encoder, FLOAT16, 2",
        "bert, BFLOAT16, 2",
        "bert, FLOAT16, 2",
        "ssd, BFLOAT16, 2",
        "ssd, FLOAT16, 2"
    })
    void trainsInMixedPrecision(String name, MixedPrecisionPolicy policy, int ranks)
            throws Exception {
        boolean convolves = name.equals("resnet18") && policy == MixedPrecisionPolicy.BFLOAT16;
        assumeTrue(
                !convolves || Files.readString(Path.of("/proc/cpuinfo")).contains("avx512bw"),
                "bfloat16 convolutions that add in float32 need AVX-512");
        List<Double> expected = alone(P2pEngine.NAME, name, withoutDropout(block(name)));
        GradScaler scaler = new GradScaler(64, 2000); // skips no step
        Block block = withoutDropout(block(name));
        List<Double> actual =
                train(
                        P2pEngine.NAME,
                        ranks,
                        config -> config.optMixedPrecision(policy).optGradScaler(scaler),
                        block,
                        data(name),
                        () -> {});
        double rounding = policy == MixedPrecisionPolicy.BFLOAT16 ? 1.0 / 256 : 1.0 / 2048;
        assertEquals(6, scaler.goodSteps());
        long layers =
                block.getParameters().values().stream()
                        .filter(own -> own.getType() == Parameter.Type.WEIGHT)
                        .count();
        boolean same = true;
        for (int i = 0; i < expected.size(); i++) {
            // Each layer rounds its results, and so does each step its weights.
            double roundings = layers * Math.max(1, Math.min(i, 6));
            double allowed = roundings * rounding * Math.max(1, Math.abs(expected.get(i)));
            assertEquals(expected.get(i), actual.get(i), allowed, "batch " + i + ", " + actual);
            same &= Math.abs(expected.get(i) - actual.get(i)) < 1e-6;
        }
        assertFalse(same, "the losses are those of float32");
    }

    private static void assertNear(List<Double> expected, List<Double> actual) {
        assertEquals(expected.size(), actual.size());
        for (int i = 0; i < expected.size(); i++) {
            double allowed = TOLERANCE * Math.max(1, Math.abs(expected.get(i)));
            assertEquals(expected.get(i), actual.get(i), allowed, "batch " + i + ", " + actual);
        }
    }

    private interface Body {
        NDList apply(ParameterStore store, NDList inputs, boolean training);
    }

    /** A linear layer, then a body. */
    private static class Own extends AbstractBlock {

        private final Block linear = addChildBlock("linear", Linear.builder().setUnits(3).build());
        private final Body body;
        private NDArray hidden;

        Own(Body body) {
            this.body = body;
        }

        @Override
        protected NDList forwardInternal(
                ParameterStore store,
                NDList inputs,
                boolean training,
                PairList<String, Object> params) {
            NDArray y = linear.forward(store, new NDList(inputs.head()), training).head();
            NDList all = new NDList(y);
            all.addAll(inputs.subNDList(1));
            return body.apply(store, all, training);
        }

        @Override
        public Shape[] getOutputShapes(Shape[] shapes) {
            return linear.getOutputShapes(shapes);
        }

        @Override
        protected void initializeChildBlocks(NDManager manager, DataType type, Shape... shapes) {
            linear.initialize(manager, type, shapes[0]);
        }
    }

    private static final Data ROWS =
            (manager, rows, random) -> new NDList(normal(manager, random, rows, 4));

    private static void assertRefused(Block block, Data data, String words) {
        IllegalArgumentException e =
                assertThrows(
                        IllegalArgumentException.class,
                        () -> train(P2pEngine.NAME, 2, block, data));
        assertTrue(e.getMessage().contains(words), e.getMessage());
    }

    @Test
    void rejectsABatchThatIsNotTheFirstDimension() {
        assertRefused(lstm(false), data("lstm"), "prediction 0 of shape");
    }

    @ParameterizedTest
    @ValueSource(strings = {"similarity", "mean", "sum", "dropout"})
    void rejectsBlocksThatMixRows(String kind) {
        Block dropout = Dropout.builder().optRate(0.5f).build();
        Body body =
                switch (kind) {
                    case "similarity" ->
                            (store, in, training) ->
                                    new NDList(in.head().matMul(in.head().transpose()));
                    case "mean" ->
                            (store, in, training) ->
                                    new NDList(in.head().sub(in.head().mean(new int[] {0}, true)));
                    case "sum" -> (store, in, training) -> new NDList(in.head().sum());
                    default ->
                            (store, in, training) ->
                                    dropout.forward(
                                            store,
                                            new NDList(
                                                    in.head()
                                                            .sub(
                                                                    in.head()
                                                                            .mean(
                                                                                    new int[] {0},
                                                                                    true))),
                                            training);
                };
        assertRefused(new Own(body), ROWS, "predict something else than one rank");
    }

    /** A difference in training alone is one, too, unless random numbers are drawn. */
    @Test
    void rejectsBlocksThatMixRowsInTrainingOnly() {
        Body body =
                (store, in, training) -> {
                    NDArray x = in.head();
                    return new NDList(training ? x.sub(x.mean(new int[] {0}, true)) : x);
                };
        assertRefused(new Own(body), ROWS, "predict something else than one rank");
    }

    /** As dropout of few elements, which may happen to drop none in the check's whole passes. */
    @Test
    void acceptsRandomNumbersThatDifferBetweenRanks() {
        Body body =
                (store, in, training) -> {
                    NDArray x = in.head();
                    NDArray noise = x.getManager().randomNormal(x.getShape());
                    boolean whole = x.getShape().get(0) == 8;
                    return new NDList(whole || !training ? x : x.add(noise));
                };
        train(P2pEngine.NAME, 2, new Own(body), ROWS);
    }

    /** The check compares in evaluation mode, along the dimension that training has found. */
    @Test
    void randomPredictionsMayHaveTheBatchInAnyDimension() {
        Block dropout = Dropout.builder().optRate(0.5f).build();
        Body body =
                (store, in, training) ->
                        new NDList(
                                dropout.forward(store, new NDList(in.head()), training)
                                        .head()
                                        .transpose());
        assertEquals(7, train(P2pEngine.NAME, 2, new Own(body), ROWS).size());
    }

    /** As DJL's SparseMax, for an array of one sample: there are fewer than its 3 elements. */
    @Test
    void failureOnAPartOfTheBatchNamesTheBatch() {
        Body body = (store, in, training) -> new NDList(in.head().get("{}:", 7).get("0"));
        EngineException e =
                assertThrows(
                        EngineException.class, () -> train(P2pEngine.NAME, 2, new Own(body), ROWS));
        String hints = Arrays.toString(e.getSuppressed());
        assertTrue(hints.contains("of shape (8, 4), must be the batch"), hints);
    }

    /** Dropout draws other numbers on each rank: that alone is no difference. */
    @Test
    void acceptsDropout() {
        train(P2pEngine.NAME, 2, block("bert"), data("bert"));
    }

    /** A scalar loss within the block, and a mask without the batch. */
    @ParameterizedTest
    @ValueSource(ints = {2, 4})
    void meansAndMasksTrainAsOnOneDevice(int ranks) {
        Data data =
                (manager, rows, random) ->
                        new NDList(
                                normal(manager, random, rows, 4),
                                manager.create(new float[] {1, 0, 1}),
                                manager.create(2f));
        Supplier<Block> block =
                () ->
                        new Own(
                                (store, in, training) -> {
                                    NDArray y = in.get(0).mul(in.get(1)).mul(in.get(2));
                                    return new NDList(y, y.square().mean());
                                });
        List<Double> expected = train("PyTorch", 1, block.get(), data);
        List<Double> actual = train(P2pEngine.NAME, ranks, block.get(), data);
        assertNear(expected, actual);
    }

    @Test
    void rejectsStateInFieldsBetweenPasses() {
        assertRefused(keeping(), ROWS, "keeps state in the field Own.hidden");
        System.setProperty("org.djlx.checkForward", "false");
        try {
            assertEquals(7, train(P2pEngine.NAME, 2, keeping(), ROWS).size());
        } finally {
            System.clearProperty("org.djlx.checkForward");
        }
    }

    private static Block keeping() {
        Own[] own = new Own[1];
        own[0] =
                new Own(
                        (store, in, training) -> {
                            own[0].hidden = in.head();
                            return new NDList(in.head());
                        });
        return own[0];
    }

    /** The gradient of the batch itself, as adversarial training and GANs need it. */
    @ParameterizedTest
    @ValueSource(ints = {2, 4})
    void gradientsOfTheDataEqualOneDevice(int ranks) {
        float[][] gradients = new float[2][];
        for (int turn = 0; turn < 2; turn++) {
            DataParallelConfig config = new DataParallelConfig(Training.loss());
            config.optRanks(turn == 0 ? 1 : ranks);
            SequentialBlock block = Training.block();
            block.setInitializer(Training.weights(5), Parameter.Type.WEIGHT);
            try (Model model = Model.newInstance("m", turn == 0 ? "PyTorch" : P2pEngine.NAME)) {
                model.setBlock(block);
                try (Trainer trainer = model.newTrainer(config)) {
                    trainer.initialize(new Shape(1, Training.FEATURES));
                    NDManager manager = trainer.getManager();
                    NDArray x = normal(manager, new Random(2), 3, Training.FEATURES);
                    x.setRequiresGradient(true);
                    try (GradientCollector collector = trainer.newGradientCollector()) {
                        NDArray y = trainer.forward(new NDList(x.mul(x))).head();
                        collector.backward(y.square().sum());
                    }
                    gradients[turn] = x.getGradient().toFloatArray();
                }
            }
        }
        for (int i = 0; i < gradients[0].length; i++) {
            assertEquals(gradients[0][i], gradients[1][i], TOLERANCE);
        }
    }

    @Test
    void rejectsTheEnginesCollector() {
        DataParallelConfig config = new DataParallelConfig(Training.loss());
        config.optRanks(2);
        try (Model model = Model.newInstance("m", P2pEngine.NAME)) {
            model.setBlock(Training.block());
            try (Trainer trainer = model.newTrainer(config)) {
                trainer.initialize(new Shape(1, Training.FEATURES));
                NDManager manager = trainer.getManager();
                try (GradientCollector collector = manager.getEngine().newGradientCollector()) {
                    NDList x = new NDList(normal(manager, new Random(2), 4, Training.FEATURES));
                    IllegalStateException e =
                            assertThrows(IllegalStateException.class, () -> trainer.forward(x));
                    assertTrue(e.getMessage().contains("trainer.newGradientCollector()"));
                    collector.zeroGradients();
                }
            }
        }
    }

    /** Processes: a mean loss each; statistics and gradients are those of all rows. */
    @Test
    void batchNormOfProcessesEqualsOneDevice() {
        float[][] expected = normTrained(null, "PyTorch", 8, 0);
        List<ProcessGroup> groups = ProcessGroups.local(2);
        try {
            List<float[][]> all =
                    ProcessGroups.run(
                            groups,
                            group -> normTrained(group, P2pEngine.NAME, 4, 4 * group.rank()));
            for (float[][] own : all) {
                for (int i = 0; i < expected.length; i++) {
                    assertArrayEquals(expected[i], own[i], 1e-5f, "parameter " + i);
                }
            }
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    private static float[][] normTrained(ProcessGroup group, String engine, int rows, int first) {
        DataParallelConfig config = new DataParallelConfig(Training.loss());
        config.optProcessGroup(group).optDevices(new Device[] {Device.cpu()});
        config.optOptimizer(Training.optimizer("momentum"));
        SequentialBlock block = new SequentialBlock();
        block.add(Linear.builder().setUnits(5).build()).add(BatchNorm.builder().build());
        block.add(Activation::tanh).add(Linear.builder().setUnits(2).build());
        block.setInitializer(Training.weights(5), Parameter.Type.WEIGHT);
        try (Model model = Model.newInstance("norm", engine)) {
            model.setBlock(block);
            try (Trainer trainer = model.newTrainer(config)) {
                trainer.initialize(new Shape(1, 6));
                for (int step = 0; step < 4; step++) {
                    NDArray whole = normal(trainer.getManager(), new Random(step), 8, 6);
                    try (GradientCollector collector = trainer.newGradientCollector()) {
                        NDArray x = whole.get(first + ":" + (first + rows));
                        NDArray y = trainer.forward(new NDList(x)).head();
                        collector.backward(y.square().mean());
                    }
                    trainer.step();
                }
            }
            return NoGradient.get(
                    () ->
                            block.getParameters().values().stream()
                                    .map(own -> own.getArray().toFloatArray())
                                    .toArray(float[][]::new));
        }
    }

    /** Clamps weights between steps, as WGANs do. */
    @ParameterizedTest
    @ValueSource(ints = {2, 4})
    void changesOfParametersReachAllRanks(int ranks) {
        float[][] weights = new float[2][];
        for (int turn = 0; turn < 2; turn++) {
            DataParallelConfig config = new DataParallelConfig(Training.loss());
            config.optRanks(turn == 0 ? 1 : ranks).optOptimizer(Training.optimizer("momentum"));
            SequentialBlock block = Training.block();
            block.setInitializer(Training.weights(5), Parameter.Type.WEIGHT);
            try (Model model = Model.newInstance("m", turn == 0 ? "PyTorch" : P2pEngine.NAME)) {
                model.setBlock(block);
                NDArray weight;
                try (Trainer trainer = model.newTrainer(config)) {
                    trainer.initialize(new Shape(1, Training.FEATURES));
                    weight = block.getParameters().valueAt(0).getArray();
                    for (int step = 0; step < 4; step++) {
                        NDManager manager = trainer.getManager();
                        NDArray x = normal(manager, new Random(step), 8, Training.FEATURES);
                        try (GradientCollector collector = trainer.newGradientCollector()) {
                            NDArray y = trainer.forward(new NDList(x)).head();
                            collector.backward(y.square().sum());
                        }
                        trainer.step();
                        NoGradient.run(() -> Torch.copy(weight, weight.clip(-0.2f, 0.2f)));
                    }
                }
                weights[turn] = NoGradient.get(weight::toFloatArray);
            }
        }
        assertArrayEquals(weights[0], weights[1], 1e-5f);
    }

    /** A rate of its own for each parameter; 0 for the first. */
    private static FixedPerVarTracker rates(Block block) {
        FixedPerVarTracker.Builder rates = FixedPerVarTracker.builder().setDefaultValue(9);
        float rate = 0;
        for (Parameter parameter : block.getParameters().values()) {
            rates.put(parameter.getId(), rate);
            rate += 0.02f;
        }
        return rates.build();
    }

    @ParameterizedTest
    @CsvSource({
        "1, NO_SHARD, 20",
        "2, NO_SHARD, 20",
        "3, NO_SHARD, 4",
        "2, SHARD_OPTIMIZER, 20",
        "2, FULL_SHARD, 20"
    })
    void learningRatesPerParameterAreThoseOfAllRanks(
            int ranks, ShardingStrategy sharding, int bucketLog) {
        float[][][] weights = new float[2][][];
        for (int turn = 0; turn < 2; turn++) {
            SequentialBlock block = Training.block();
            block.setInitializer(Training.weights(5), Parameter.Type.WEIGHT);
            DataParallelConfig config = new DataParallelConfig(Training.loss());
            Optimizer optimizer =
                    Optimizer.sgd().setLearningRateTracker(rates(block)).optMomentum(0.9f).build();
            config.optOptimizer(optimizer);
            if (turn == 1) {
                config.optRanks(ranks).optBucketBytes(1 << bucketLog).optShardingStrategy(sharding);
            }
            try (Model model = Model.newInstance("m", turn == 0 ? "PyTorch" : P2pEngine.NAME)) {
                model.setBlock(block);
                // A second trainer finds the rates in the optimizer, too; its state may be lost.
                int trainers = sharding == ShardingStrategy.NO_SHARD ? 2 : 1;
                for (int i = 0; i < trainers; i++) {
                    try (Trainer trainer = model.newTrainer(config)) {
                        threeSteps(trainer);
                    }
                }
                weights[turn] =
                        NoGradient.get(
                                () ->
                                        block.getParameters().values().stream()
                                                .map(own -> own.getArray().toFloatArray())
                                                .toArray(float[][]::new));
            }
        }
        for (int i = 0; i < weights[0].length; i++) {
            assertArrayEquals(weights[0][i], weights[1][i], 1e-5f, "parameter " + i);
        }
    }

    private static void threeSteps(Trainer trainer) {
        trainer.initialize(new Shape(1, Training.FEATURES));
        for (int step = 0; step < 3; step++) {
            NDArray x = normal(trainer.getManager(), new Random(step), 8, Training.FEATURES);
            try (GradientCollector collector = trainer.newGradientCollector()) {
                collector.backward(trainer.forward(new NDList(x)).head().square().sum());
            }
            trainer.step();
        }
    }

    /** Keeps rates in a field of their own type. */
    private static final class OwnRates extends Optimizer {

        private final FixedPerVarTracker rates =
                FixedPerVarTracker.builder().setDefaultValue(0.1f).build();

        OwnRates() {
            super(Optimizer.sgd());
        }

        @Override
        public void update(String id, NDArray weight, NDArray gradient) {
            weight.subi(gradient.mul(rates.getNewValue(id, 1)));
        }
    }

    @Test
    void rejectsLearningRatesThatItCannotShare() {
        DataParallelConfig config = new DataParallelConfig(Training.loss());
        config.optRanks(2).optOptimizer(new OwnRates());
        try (Model model = Model.newInstance("m", P2pEngine.NAME)) {
            model.setBlock(Training.block());
            IllegalArgumentException e =
                    assertThrows(IllegalArgumentException.class, () -> model.newTrainer(config));
            assertTrue(e.getMessage().contains("FixedPerVarTracker"), e.getMessage());
        }
    }

    /** The replaced block is DJL's for programs: same parameters, and usable alone. */
    @Test
    void batchNormKeepsItsParameters() {
        Block norm = BatchNorm.builder().build();
        SequentialBlock block = new SequentialBlock().add(norm);
        List<String> before = block.getParameters().keys();
        SyncBatchNorm.convert(block, true);
        assertTrue(block.getChildren().valueAt(0) instanceof SyncBatchNorm);
        assertEquals(before, block.getParameters().keys());
        assertEquals(norm.getParameters().valueAt(0), block.getParameters().valueAt(0));
    }
}
