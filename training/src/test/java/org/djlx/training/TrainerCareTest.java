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
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.nn.norm.BatchNorm;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;
import java.nio.file.Path;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.engine.P2pEngine;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.training.checkpoint.CheckpointManager;
import org.djlx.training.checkpoint.TrainingProgress;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** What a program may do with a trainer beside passes and steps in turn. */
@Timeout(120)
class TrainerCareTest {

    private static final float TOLERANCE = 2e-6f;

    private static Model model(String engine) {
        Model model = Model.newInstance("model", engine);
        SequentialBlock block = Training.block();
        block.setInitializer(Training.weights(5), Parameter.Type.WEIGHT);
        model.setBlock(block);
        return model;
    }

    private static Trainer trainer(Model model, Optimizer optimizer, int ranks) {
        DataParallelConfig config = new DataParallelConfig(Training.loss());
        config.optRanks(ranks).optBucketBytes(64).optOptimizer(optimizer);
        Trainer trainer = model.newTrainer(config);
        trainer.initialize(new Shape(1, Training.FEATURES));
        return trainer;
    }

    private static NDArray batch(NDManager manager, int rows, int seed) {
        Random random = new Random(seed);
        float[] values = new float[rows * Training.FEATURES];
        for (int i = 0; i < values.length; i++) {
            values[i] = random.nextFloat() - 0.5f;
        }
        return manager.create(values, new Shape(rows, Training.FEATURES));
    }

    private static void pass(Trainer trainer, GradientCollector collector, int rows, int seed) {
        try (NDManager manager = trainer.getManager().newSubManager()) {
            NDArray y = trainer.forward(new NDList(batch(manager, rows, seed))).head();
            collector.backward(y.square().sum());
        }
    }

    private static void step(Trainer trainer, int seed) {
        try (GradientCollector collector = trainer.newGradientCollector()) {
            pass(trainer, collector, 4, seed);
        }
        trainer.step();
    }

    private static float[][] parameters(Model model) {
        return NoGradient.get(
                () ->
                        model.getBlock().getParameters().values().stream()
                                .map(parameter -> parameter.getArray().toFloatArray())
                                .toArray(float[][]::new));
    }

    private static void assertNear(float[][] expected, float[][] actual) {
        assertEquals(expected.length, actual.length);
        for (int i = 0; i < expected.length; i++) {
            assertArrayEquals(expected[i], actual[i], TOLERANCE, "parameter " + i);
        }
    }

    /** Batches of fewer rows than ranks, as the last of an epoch, among others before a step. */
    @ParameterizedTest
    @CsvSource({"2, 1:4", "2, 4:1", "2, 4:1:4:1:1", "3, 2:1:6", "4, 3:8:2", "4, 1:1"})
    void batchesSmallerThanTheNumberOfRanksTrain(int ranks, String rows) {
        for (boolean together : new boolean[] {true, false}) {
            float[][] expected = accumulate("PyTorch", 1, rows, together);
            assertNear(expected, accumulate(P2pEngine.NAME, ranks, rows, together));
        }
    }

    /** Two steps of such passes, with a collector for all of a step or for each. */
    private static float[][] accumulate(String engine, int ranks, String rows, boolean together) {
        try (Model model = model(engine)) {
            try (Trainer trainer = trainer(model, Training.optimizer("momentum"), ranks)) {
                for (int step = 0; step < 2; step++) {
                    int seed = 10 * step;
                    GradientCollector all = together ? trainer.newGradientCollector() : null;
                    for (String count : rows.split(":")) {
                        GradientCollector own = together ? all : trainer.newGradientCollector();
                        pass(trainer, own, Integer.parseInt(count), seed++);
                        if (!together) {
                            own.close();
                        }
                    }
                    if (together) {
                        all.close();
                    }
                    trainer.step();
                }
                step(trainer, 99);
            }
            return parameters(model);
        }
    }

    /** A pass that fails on one rank leaves the others with one begun. */
    @Test
    void passCanBeRepeatedAfterAFailure() {
        float[][][] results = new float[2][][];
        for (int turn = 0; turn < 2; turn++) {
            boolean fails = turn == 1;
            try (Model model = model(P2pEngine.NAME)) {
                boolean[] armed = {false};
                ((SequentialBlock) model.getBlock())
                        .add(
                                list -> {
                                    if (armed[0]
                                            && Thread.currentThread().getName().endsWith("-1")) {
                                        throw new IllegalStateException("a bad row");
                                    }
                                    return list;
                                });
                try (Trainer trainer = trainer(model, Training.optimizer("sgd"), 2)) {
                    try (GradientCollector collector = trainer.newGradientCollector()) {
                        pass(trainer, collector, 4, 1);
                        if (fails) {
                            armed[0] = true;
                            RuntimeException e =
                                    assertThrows(
                                            RuntimeException.class,
                                            () -> pass(trainer, collector, 4, 2));
                            assertTrue(e.getMessage().contains("a bad row"), e.getMessage());
                            armed[0] = false;
                        }
                        pass(trainer, collector, 4, 2);
                        pass(trainer, collector, 4, 3);
                    }
                    trainer.step();
                }
                results[turn] = parameters(model);
            }
        }
        assertNear(results[0], results[1]);
    }

    /** After the backward pass a program may read gradients, change them, and add to them. */
    @ParameterizedTest
    @CsvSource({"norm, 1", "norm, 2", "norm, 4", "penalty, 1", "penalty, 2", "penalty, 4"})
    void gradientsBeforeTheStepCoverAllRanks(String what, int ranks) {
        for (boolean chain : new boolean[] {true, false}) {
            float[][] expected = changed("PyTorch", 1, what, chain);
            assertNear(expected, changed(P2pEngine.NAME, ranks, what, chain));
        }
    }

    /** Clips all gradients by their norm, or adds the gradient of a penalty; in a second pass. */
    private static float[][] changed(String engine, int ranks, String what, boolean chain) {
        Block block = chain ? Training.block() : Linear.builder().setUnits(2).build();
        try (Model model = Model.newInstance("changed", engine)) {
            block.setInitializer(Training.weights(5), Parameter.Type.WEIGHT);
            model.setBlock(block);
            try (Trainer trainer = trainer(model, Training.optimizer("sgd"), ranks)) {
                step(trainer, 0);
                try (GradientCollector collector = trainer.newGradientCollector()) {
                    pass(trainer, collector, 3, 1);
                    change(block, collector, what);
                    pass(trainer, collector, 4, 2);
                    change(block, collector, what);
                }
                trainer.step();
                step(trainer, 3);
            }
            return parameters(model);
        }
    }

    private static void change(Block block, GradientCollector collector, String what) {
        List<NDArray> arrays =
                block.getParameters().values().stream().map(Parameter::getArray).toList();
        if (what.equals("penalty")) {
            collector.backward(arrays.get(0).square().sum());
            return;
        }
        NoGradient.run(
                () -> {
                    List<NDArray> gradients = arrays.stream().map(NDArray::getGradient).toList();
                    double squares = 0;
                    for (NDArray gradient : gradients) {
                        squares += gradient.square().sum().getFloat();
                    }
                    float scale = (float) (1 / Math.sqrt(squares));
                    gradients.forEach(gradient -> gradient.muli(scale));
                    gradients.forEach(NDArray::close);
                });
    }

    @Test
    void failureOfARankEndsTheOthersReductions() {
        DataParallelConfig config = new DataParallelConfig(Training.loss());
        failInBackward(config.optRanks(2));
    }

    /**
     * Rank 1 fails on the way back, when rank 0 goes on to a reduction that it waits in; that must
     * not take as long as operations may.
     */
    static void failInBackward(DataParallelConfig config) {
        config.optBucketBytes(64).optOptimizer(Training.optimizer("sgd"));
        SequentialBlock block =
                new SequentialBlock()
                        .add(Training.block())
                        .add(TrainerCareTest::failingOnTheWayBack)
                        .add(Training.block());
        try (Model model = Model.newInstance("failing", P2pEngine.NAME)) {
            model.setBlock(block);
            try (Trainer trainer = model.newTrainer(config)) {
                trainer.initialize(new Shape(1, Training.FEATURES));
                try (GradientCollector collector = trainer.newGradientCollector()) {
                    IllegalStateException e =
                            assertThrows(
                                    IllegalStateException.class,
                                    () -> pass(trainer, collector, 4, 1));
                    assertEquals("lost its way", e.getMessage());
                }
            }
        }
    }

    private static NDList failingOnTheWayBack(NDList list) {
        NDArray in = list.head();
        GradientScope scope = GradientScope.current().orElse(null);
        if (scope == null) {
            return list;
        }
        NDArray out = in.stopGradient();
        scope.record(
                "fail",
                List.of(in),
                List.of(),
                List.of(out),
                (inputs, kept, gradients) -> {
                    if (Thread.currentThread().getName().equals("trainer-rank-1")) {
                        throw new IllegalStateException("lost its way");
                    }
                    return gradients;
                });
        return new NDList(out);
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 2})
    void loadedParametersStayAfterClose(int ranks, @TempDir Path directory) throws Exception {
        try (Model model = model(P2pEngine.NAME)) {
            float[][] best;
            try (Trainer trainer = trainer(model, Training.optimizer("sgd"), ranks)) {
                best = parameters(model);
                model.save(directory, "best");
                step(trainer, 1);
                model.load(directory, "best");
            }
            float[][] last = parameters(model);
            for (int i = 0; i < best.length; i++) {
                assertArrayEquals(best[i], last[i]);
            }
        }
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 2})
    void rejectedStepUpdatesNothing(int ranks) {
        Optimizer decaying =
                Optimizer.sgd()
                        .setLearningRateTracker(Tracker.fixed(0.05f))
                        .optWeightDecays(0.5f)
                        .build();
        try (Model model = model(P2pEngine.NAME);
                Trainer trainer = trainer(model, decaying, ranks)) {
            float[][] before = parameters(model);
            assertThrows(IllegalStateException.class, trainer::step);
            float[][] after = parameters(model);
            for (int i = 0; i < before.length; i++) {
                assertArrayEquals(before[i], after[i]);
            }
        }
    }

    /** Trainers of 2, 3, 1 and 4 ranks, one after the other, train as one of a single rank. */
    @ParameterizedTest
    @ValueSource(strings = {"momentum", "adam"})
    void trainersInTurnShareAnOptimizer(String name) {
        float[][][] results = new float[2][][];
        for (int turn = 0; turn < 2; turn++) {
            Optimizer optimizer = Training.optimizer(name);
            try (Model model = model(P2pEngine.NAME)) {
                int seed = 0;
                for (int ranks : new int[] {2, 3, 1, 4}) {
                    try (Trainer trainer = trainer(model, optimizer, turn == 0 ? 1 : ranks)) {
                        step(trainer, seed++);
                        step(trainer, seed++);
                    }
                }
                results[turn] = parameters(model);
            }
        }
        assertNear(results[0], results[1]);
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 2})
    void restoreDropsGradients(int ranks, @TempDir Path directory) throws Exception {
        try (Model model = model(P2pEngine.NAME);
                Trainer trainer = trainer(model, Training.optimizer("adam"), ranks)) {
            CheckpointManager checkpoints =
                    CheckpointManager.builder().setDirectory(directory).build();
            step(trainer, 1);
            checkpoints.save(trainer, new TrainingProgress(1, 0, 1));
            step(trainer, 2);
            float[][] expected = parameters(model);
            try (GradientCollector collector = trainer.newGradientCollector()) {
                NDArray x = trainer.getManager().full(new Shape(4, Training.FEATURES), Float.NaN);
                collector.backward(trainer.forward(new NDList(x)).head().sum());
            }
            checkpoints.restore(trainer);
            step(trainer, 2);
            float[][] actual = parameters(model);
            for (int i = 0; i < expected.length; i++) {
                assertArrayEquals(expected[i], actual[i]);
            }
        }
    }

    /** Results of operators on parameters would live as long as the model. */
    @Test
    void batchNormalisationClosesItsArrays() {
        SequentialBlock block = new SequentialBlock();
        block.add(Linear.builder().setUnits(5).build()).add(BatchNorm.builder().build());
        try (Model model = Model.newInstance("normalised", P2pEngine.NAME)) {
            model.setBlock(block);
            try (Trainer trainer = trainer(model, Training.optimizer("sgd"), 2)) {
                step(trainer, 1);
                step(trainer, 2);
                long arrays = TrainingMemoryTest.arrays(trainer.getManager());
                step(trainer, 3);
                assertEquals(arrays, TrainingMemoryTest.arrays(trainer.getManager()));
            }
        }
    }

    @Test
    void interruptedThreadClosesItsTrainer() {
        for (int i = 0; i < 10; i++) {
            try (Model model = model(P2pEngine.NAME)) {
                Trainer trainer = trainer(model, Training.optimizer("sgd"), 4);
                step(trainer, 1);
                Thread.currentThread().interrupt();
                trainer.close();
                assertTrue(Thread.interrupted(), "the interrupt is kept");
            }
        }
    }

    /** Waits in an update until it is let go on. */
    private static final class Waiting extends Optimizer {

        private final CountDownLatch begun = new CountDownLatch(1);
        private final CountDownLatch end = new CountDownLatch(1);

        private static final class Builder extends OptimizerBuilder<Builder> {
            @Override
            protected Builder self() {
                return this;
            }
        }

        Waiting() {
            super(new Builder());
        }

        @Override
        public void update(String parameterId, NDArray weight, NDArray gradient) {
            begun.countDown();
            try {
                assertTrue(end.await(60, TimeUnit.SECONDS));
            } catch (InterruptedException e) {
                throw new IllegalStateException(e);
            }
        }
    }

    @Test
    void interruptedStepNamesTheInterrupt() throws Exception {
        Waiting optimizer = new Waiting();
        try (Model model = model(P2pEngine.NAME);
                Trainer trainer = trainer(model, optimizer, 2)) {
            Thread main = Thread.currentThread();
            Thread interrupter =
                    new Thread(
                            () -> {
                                try {
                                    assertTrue(optimizer.begun.await(60, TimeUnit.SECONDS));
                                    main.interrupt();
                                    // The step has taken notice when the flag is gone.
                                    while (main.isInterrupted()) {
                                        Thread.sleep(1);
                                    }
                                } catch (InterruptedException e) {
                                    throw new IllegalStateException(e);
                                } finally {
                                    optimizer.end.countDown();
                                }
                            });
            interrupter.start();
            CollectiveException e = assertThrows(CollectiveException.class, () -> step(trainer, 1));
            assertTrue(Thread.interrupted(), "the interrupt is kept");
            interrupter.join();
            assertTrue(e.getMessage().contains("interrupted"), e.getMessage());
            IllegalStateException later =
                    assertThrows(IllegalStateException.class, () -> step(trainer, 2));
            assertTrue(later.getMessage().contains("Interrupted"), later.getMessage());
        }
    }
}
