// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.nn.norm.BatchNorm;
import ai.djl.training.EasyTrain;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.dataset.BatchSampler;
import ai.djl.training.dataset.RandomAccessDataset;
import ai.djl.training.dataset.SequenceSampler;
import ai.djl.training.evaluator.Accuracy;
import ai.djl.training.listener.EvaluatorTrainingListener;
import ai.djl.training.listener.TrainingListenerAdapter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.stream.Stream;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.engine.P2pEngine;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.training.checkpoint.CheckpointManager;
import org.djlx.training.checkpoint.TrainingProgress;
import org.djlx.training.data.JoinListener;
import org.djlx.training.strategy.ShardingStrategy;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Trainers with one rank each, as processes have, and different numbers of batches. */
@Timeout(120)
class UnevenProcessesTest {

    private static final int FEATURES = 6;
    private static final int ROWS = 4; // of a process's batch
    private static final int[] STEPS = {5, 3}; // of each process
    private static final float TOLERANCE = 1e-5f;

    private interface Body {
        void run(Trainer trainer) throws Exception;
    }

    private static float[][] train(String engine, DataParallelConfig config, Body body)
            throws Exception {
        config.optDevices(new Device[] {Device.cpu()});
        config.optOptimizer(Training.optimizer("momentum"));
        SequentialBlock block = new SequentialBlock();
        block.add(Linear.builder().setUnits(5).build()).add(BatchNorm.builder().build());
        block.add(Activation::tanh).add(Linear.builder().setUnits(3).build());
        block.setInitializer(Training.weights(5), Parameter.Type.WEIGHT);
        try (Model model = Model.newInstance("uneven", engine)) {
            model.setBlock(block);
            try (Trainer trainer = model.newTrainer(config)) {
                trainer.initialize(new Shape(1, FEATURES));
                body.run(trainer);
            }
            return NoGradient.get(
                    () ->
                            block.getParameters().values().stream()
                                    .map(own -> own.getArray().toFloatArray())
                                    .toArray(float[][]::new));
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

    private static DataParallelConfig config(ProcessGroup group, boolean join) {
        return new DataParallelConfig(Training.loss()).optProcessGroup(group).optJoin(join);
    }

    /** Returns the rows of both processes in a pass. */
    private static NDArray rows(NDManager manager, int step, int pass) {
        Random random = new Random(10 * step + pass);
        float[] values = new float[2 * ROWS * FEATURES];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) random.nextGaussian();
        }
        return manager.create(values, new Shape(2 * ROWS, FEATURES));
    }

    /** The last step accumulates two passes. */
    private static int passes(int step) {
        return step == STEPS[0] - 1 ? 2 : 1;
    }

    private static void trainPart(Trainer trainer, int rank) {
        for (int step = 0; step < STEPS[rank]; step++) {
            for (int pass = 0; pass < passes(step); pass++) {
                pass(trainer, rank, step, pass);
            }
            trainer.step();
        }
    }

    /** One device, with the average of the processes' losses; 0 for a process without batches. */
    private static void trainWhole(Trainer trainer) {
        for (int step = 0; step < STEPS[0]; step++) {
            try (GradientCollector collector = trainer.newGradientCollector()) {
                for (int pass = 0; pass < passes(step); pass++) {
                    NDManager manager = trainer.getManager();
                    NDArray all = rows(manager, step, pass);
                    NDArray x = step < STEPS[1] ? all : all.get(":" + ROWS);
                    NDArray loss = trainer.forward(new NDList(x)).head().square().mean();
                    NDArray half = manager.create(0.5f);
                    collector.backward(step < STEPS[1] ? loss : loss.mul(half));
                }
            }
            trainer.step();
        }
    }

    @ParameterizedTest
    @EnumSource(ShardingStrategy.class)
    void joinedProcessAddsNothingToGradients(ShardingStrategy strategy) throws Exception {
        float[][] expected = train("PyTorch", config(null, false), t -> trainWhole(t));
        List<float[][]> all =
                onTwo(
                        group ->
                                train(
                                        P2pEngine.NAME,
                                        config(group, true).optShardingStrategy(strategy),
                                        trainer -> {
                                            trainPart(trainer, group.rank());
                                            NDArray x = rows(trainer.getManager(), 0, 0);
                                            trainer.evaluate(new NDList(x));
                                            ((DataParallelTrainer) trainer).join();
                                        }));
        for (float[][] own : all) {
            for (int i = 0; i < expected.length; i++) {
                assertArrayEquals(expected[i], own[i], TOLERANCE, "parameter " + i);
            }
        }
    }

    /** Checkpoints are saved at steps of which one process had no batch, and at ends of epochs. */
    @Test
    void joinedProcessTakesPartInCheckpoints(@TempDir Path directory) throws Exception {
        List<float[][]> all =
                onTwo(
                        group -> {
                            CheckpointManager checkpoints = checkpoints(directory);
                            DataParallelConfig config = config(group, true);
                            config.addTrainingListeners(checkpoints);
                            int items = ROWS * STEPS[group.rank()];
                            return train(
                                    P2pEngine.NAME,
                                    config,
                                    trainer ->
                                            EasyTrain.fit(
                                                    trainer, 2, dataset(trainer, items), null));
                        });
        try (Stream<Path> files = Files.list(directory)) {
            assertEquals(
                    List.of(10, 2, 4, 6, 8),
                    files.map(file -> file.getFileName().toString().split("\\D+")[1])
                            .sorted()
                            .map(Integer::valueOf)
                            .toList());
        }
        List<float[][]> restored =
                onTwo(
                        group ->
                                train(
                                        P2pEngine.NAME,
                                        config(group, true),
                                        trainer ->
                                                assertEquals(
                                                        new TrainingProgress(10, 2, 0),
                                                        checkpoints(directory).restore(trainer))));
        for (int i = 0; i < all.get(0).length; i++) {
            assertArrayEquals(all.get(0)[i], restored.get(0)[i], "parameter " + i);
            assertArrayEquals(all.get(1)[i], restored.get(1)[i], "parameter " + i);
        }
    }

    private static CheckpointManager checkpoints(Path directory) {
        return CheckpointManager.builder().setDirectory(directory).optEvery(2).optKeep(9).build();
    }

    /** Sums a number over the processes at every second batch, or all. */
    private static final class Summing extends TrainingListenerAdapter implements JoinListener {

        private final ProcessGroup group;
        private final int every;
        private final int value;
        private final List<Integer> sums = new ArrayList<>();
        private int batches;

        Summing(ProcessGroup group, int every, int value) {
            this.group = group;
            this.every = every;
            this.value = value;
        }

        @Override
        public void onTrainingBatch(Trainer trainer, BatchData batchData) {
            ((DataParallelTrainer) trainer).callInJoin(this);
            onJoinedBatch(trainer);
        }

        @Override
        public void onJoinedBatch(Trainer trainer) {
            if (++batches % every == 0) {
                try (NDArray sum = trainer.getManager().create(new int[] {value})) {
                    group.allReduce(sum, ReduceOp.SUM).await();
                    sums.add(sum.toIntArray()[0]);
                }
            }
        }
    }

    /** Each of two listeners takes part in what the same one does on other processes. */
    @Test
    void joinCallsSeveralListeners() {
        List<List<List<Integer>>> all =
                onTwo(
                        group -> {
                            Summing one = new Summing(group, 2, 1 + group.rank());
                            Summing two = new Summing(group, 3, 10 * (1 + group.rank()));
                            DataParallelConfig config = config(group, true);
                            config.addTrainingListeners(one, two);
                            int items = ROWS * (group.rank() == 0 ? 2 : 6);
                            train(P2pEngine.NAME, config, trainer -> fit(trainer, items));
                            return List.of(one.sums, two.sums);
                        });
        for (List<List<Integer>> own : all) {
            assertEquals(List.of(List.of(3, 3, 3), List.of(30, 30)), own);
        }
    }

    /** Items in order, in batches of ROWS. */
    private static RandomAccessDataset dataset(Trainer trainer, int items) throws Exception {
        BatchSampler batches = new BatchSampler(new SequenceSampler(), ROWS, true);
        return Training.dataset(trainer.getManager(), items, batches);
    }

    private static void fit(Trainer trainer, int items) throws Exception {
        EasyTrain.fit(trainer, 1, dataset(trainer, items), null);
    }

    @Test
    void rejectsProcessesWithDifferentJoinListeners() throws Exception {
        onTwo(
                group -> {
                    DataParallelConfig config = config(group, true);
                    if (group.rank() == 1) {
                        config.addTrainingListeners(new Summing(group, 1, 1));
                    }
                    Executable start = () -> train(P2pEngine.NAME, config, trainer -> {});
                    String message =
                            assertThrows(IllegalArgumentException.class, start).getMessage();
                    assertTrue(message.contains("Summing"), message);
                    return null;
                });
    }

    /** The trainer does not know a listener that its configuration does not have. */
    @Test
    void callInJoinRejectsAnUnknownListener() {
        onTwo(
                group ->
                        train(
                                P2pEngine.NAME,
                                config(group, true),
                                trainer -> {
                                    Summing unknown = new Summing(group, 1, 1);
                                    assertThrows(
                                            IllegalArgumentException.class,
                                            () -> unknown.onTrainingBatch(trainer, null));
                                    ((DataParallelTrainer) trainer).join();
                                }));
    }

    /** A process that has joined takes part in passes within a scope of the other's program. */
    @Test
    void foreignScopeTrainsBesideAJoinedProcess() throws Exception {
        List<Float> biases =
                onTwo(
                        group -> {
                            DataParallelConfig config = config(group, true);
                            config.optDevices(new Device[] {Device.cpu()});
                            config.optOptimizer(Training.optimizer("sgd"));
                            return passesOfScopes(config, 3 - group.rank());
                        });
        // The gradient of a process is 1 for each row; the average divides by both processes.
        float expected = -0.05f * (2 * 2 * ROWS + ROWS);
        assertEquals(expected, biases.get(0), 1e-5f);
        assertEquals(expected, biases.get(1), 1e-5f);
    }

    /** Ranks in join learn of such a scope's backward pass only at its end, after it has met. */
    @Test
    void joinRejectsForeignScopesWithCollectivesInBackward() throws Exception {
        onTwo(
                group -> {
                    DataParallelConfig config = config(group, true);
                    config.optDevices(new Device[] {Device.cpu()});
                    config.optShardingStrategy(ShardingStrategy.FULL_SHARD);
                    config.optOptimizer(Training.optimizer("sgd"));
                    IllegalStateException refusal =
                            assertThrows(
                                    IllegalStateException.class, () -> passesOfScopes(config, 1));
                    assertTrue(refusal.getMessage().contains("ranks in join"), refusal::toString);
                    return 0f;
                });
    }

    /** Steps of two passes; returns a bias of the last layer after training. */
    private static float passesOfScopes(DataParallelConfig config, int steps) {
        SequentialBlock block = Training.block();
        try (Model model = Model.newInstance("scopes", P2pEngine.NAME)) {
            model.setBlock(block);
            try (Trainer trainer = model.newTrainer(config)) {
                trainer.initialize(new Shape(1, FEATURES));
                NDList ones = new NDList(trainer.getManager().ones(new Shape(ROWS, FEATURES)));
                for (int step = 0; step < steps; step++) {
                    try (GradientScope scope = GradientScope.open()) {
                        NDArray one = trainer.forward(ones).head();
                        scope.backward(one.sum().add(trainer.forward(ones).head().sum()));
                    }
                    trainer.step();
                }
                ((DataParallelTrainer) trainer).join();
            }
            NDArray bias = block.getChildren().valueAt(2).getParameters().valueAt(1).getArray();
            return NoGradient.get(() -> bias.toFloatArray()[0]);
        }
    }

    /** A step of a penalty alone, without a forward pass, beside a process that has joined. */
    @Test
    void penaltyTrainsBesideAJoinedProcess() {
        List<float[][]> all =
                onTwo(
                        group ->
                                train(
                                        P2pEngine.NAME,
                                        config(group, true).optRanks(1),
                                        trainer -> {
                                            trainPart(trainer, 1);
                                            if (group.rank() == 0) {
                                                penalize(trainer);
                                            }
                                            ((DataParallelTrainer) trainer).join();
                                        }));
        for (int i = 0; i < all.get(0).length; i++) {
            assertArrayEquals(all.get(0)[i], all.get(1)[i], "parameter " + i);
        }
    }

    /** Takes a step of which the gradient is 2 for each element of the first parameter. */
    private static void penalize(Trainer trainer) {
        NDArray weight = trainer.getModel().getBlock().getParameters().valueAt(0).getArray();
        try (GradientCollector collector = trainer.newGradientCollector()) {
            collector.backward(weight.sum().add(weight.sum()));
        }
        trainer.step();
    }

    /** Clips and accumulates in each step; the program drops gradients of a pass before it. */
    @SuppressWarnings("try") // noSync is open, and not used.
    private static void clipPart(Trainer trainer, int rank, boolean norm) {
        DataParallelTrainer own = (DataParallelTrainer) trainer;
        for (int step = 0; step < STEPS[rank]; step++) {
            pass(trainer, rank, step, 2);
            own.clipGradNorm(0.1);
            own.zeroGradients();
            try (DataParallelTrainer.NoSync accumulating = own.noSync()) {
                pass(trainer, rank, step, 0);
            }
            pass(trainer, rank, step, 1);
            if (norm) {
                own.clipGradNorm(0.02);
            } else {
                own.clipGradValue(0.01);
            }
            own.step();
        }
        own.join();
    }

    private static void pass(Trainer trainer, int rank, int step, int pass) {
        try (GradientCollector collector = trainer.newGradientCollector()) {
            NDArray all = rows(trainer.getManager(), step, pass);
            NDArray own = all.get(rank * ROWS + ":" + (rank + 1) * ROWS);
            NDArray y = trainer.forward(new NDList(own)).head();
            collector.backward(y.square().mean());
        }
    }

    /** As {@link #clipPart} of both processes, without the dropped passes. */
    private static void clipWhole(Trainer trainer, boolean norm) {
        for (int step = 0; step < STEPS[0]; step++) {
            try (GradientCollector collector = trainer.newGradientCollector()) {
                for (int pass = 0; pass < 2; pass++) {
                    NDManager manager = trainer.getManager();
                    NDArray all = rows(manager, step, pass);
                    NDArray x = step < STEPS[1] ? all : all.get(":" + ROWS);
                    NDArray loss = trainer.forward(new NDList(x)).head().square().mean();
                    NDArray half = manager.create(0.5f);
                    collector.backward(step < STEPS[1] ? loss : loss.mul(half));
                }
            }
            NoGradient.run(() -> clip(trainer, norm));
            trainer.step();
        }
    }

    private static void clip(Trainer trainer, boolean norm) {
        List<NDArray> gradients =
                trainer.getModel().getBlock().getParameters().values().stream()
                        .filter(Parameter::requiresGradient)
                        .map(parameter -> parameter.getArray().getGradient())
                        .toList();
        double squares = gradients.stream().mapToDouble(own -> own.square().sum().getFloat()).sum();
        assertTrue(Math.sqrt(squares) > 0.02, "nothing to clip");
        for (NDArray gradient : gradients) {
            if (norm) {
                gradient.muli(0.02 / (Math.sqrt(squares) + 1e-6));
            } else {
                gradient.set(gradient.clip(-0.01, 0.01).toFloatArray());
            }
        }
    }

    @ParameterizedTest
    @CsvSource({
        "NO_SHARD, true",
        "NO_SHARD, false",
        "SHARD_OPTIMIZER, true",
        "FULL_SHARD, true",
        "FULL_SHARD, false"
    })
    void joinedProcessClipsAndAccumulates(ShardingStrategy strategy, boolean norm)
            throws Exception {
        float[][] expected = train("PyTorch", config(null, false), t -> clipWhole(t, norm));
        List<float[][]> all =
                onTwo(
                        group ->
                                train(
                                        P2pEngine.NAME,
                                        config(group, true).optShardingStrategy(strategy),
                                        trainer -> clipPart(trainer, group.rank(), norm)));
        for (float[][] own : all) {
            for (int i = 0; i < expected.length; i++) {
                if (!isStatistic(i)) { // Statistics also count the dropped passes.
                    assertArrayEquals(expected[i], own[i], TOLERANCE, "parameter " + i);
                }
            }
        }
    }

    /** Whether a parameter of {@link #train}'s block is one of batch normalisation's statistics. */
    private static boolean isStatistic(int index) {
        return index == 4 || index == 5;
    }

    @Test
    @SuppressWarnings("try") // noSync is open, and not used.
    void joinWithinNoSyncIsRefused() throws Exception {
        onTwo(
                group ->
                        train(
                                P2pEngine.NAME,
                                config(group, true),
                                trainer -> {
                                    DataParallelTrainer own = (DataParallelTrainer) trainer;
                                    try (DataParallelTrainer.NoSync open = own.noSync()) {
                                        String message =
                                                assertThrows(IllegalStateException.class, own::join)
                                                        .getMessage();
                                        assertTrue(message.contains("noSync is open"), message);
                                    }
                                    assertThrows(
                                            IllegalArgumentException.class,
                                            () -> own.clipGradNorm(0));
                                }));
    }

    @Test
    void unevenBatchesWithoutJoinFail() {
        CollectiveException e =
                assertThrows(
                        CollectiveException.class,
                        () ->
                                onTwo(
                                        group ->
                                                train(
                                                        P2pEngine.NAME,
                                                        config(group, false),
                                                        t -> trainPart(t, group.rank()))));
        assertTrue(e.getMessage().contains("optJoin"), e.getMessage());
    }

    /** Loss and accuracy of an epoch, by DJL's listeners, are those of both processes' batches. */
    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void metricsCoverTheWholeJob(boolean uneven) {
        List<List<Map<String, Float>>> reported = new ArrayList<>();
        List<List<Float>> losses = new ArrayList<>();
        List<List<Float>> hits = new ArrayList<>();
        for (int rank = 0; rank < 2; rank++) {
            reported.add(new ArrayList<>());
            losses.add(new ArrayList<>());
            hits.add(new ArrayList<>());
        }
        List<float[][]> parameters =
                onTwo(
                        group -> {
                            int rank = group.rank();
                            DataParallelConfig config = config(group, uneven);
                            config.addEvaluator(new Accuracy());
                            config.addTrainingListeners(
                                    new EvaluatorTrainingListener(),
                                    record(losses.get(rank), hits.get(rank), reported.get(rank)));
                            int items = ROWS * (uneven ? STEPS[rank] : STEPS[1]) + rank * 2;
                            return train(
                                    P2pEngine.NAME,
                                    config,
                                    trainer -> {
                                        RandomAccessDataset data = dataset(trainer, items);
                                        EasyTrain.fit(trainer, 2, data, data);
                                    });
                        });
        for (int i = 0; i < parameters.get(0).length; i++) {
            assertArrayEquals(parameters.get(0)[i], parameters.get(1)[i], "parameter " + i);
        }
        for (int epoch = 0; epoch < 2; epoch++) {
            double loss = 0;
            double hit = 0;
            int batches = 0;
            for (int rank = 0; rank < 2; rank++) {
                int own = losses.get(rank).size() / 2;
                for (int i = epoch * own; i < (epoch + 1) * own; i++) {
                    loss += losses.get(rank).get(i);
                    hit += hits.get(rank).get(i);
                    batches++;
                }
            }
            for (int rank = 0; rank < 2; rank++) {
                Map<String, Float> own = reported.get(rank).get(epoch);
                assertEquals(loss / batches, own.get("train_loss"), TOLERANCE);
                assertEquals(hit / batches / ROWS, own.get("train_Accuracy"), TOLERANCE);
            }
            for (String name : List.of("validate_loss", "validate_Accuracy")) {
                assertEquals(
                        reported.get(0).get(epoch).get(name),
                        reported.get(1).get(epoch).get(name),
                        name);
            }
        }
    }

    private static TrainingListenerAdapter record(
            List<Float> losses, List<Float> hits, List<Map<String, Float>> reported) {
        return new TrainingListenerAdapter() {
            @Override
            public void onTrainingBatch(Trainer trainer, BatchData data) {
                data.getPredictions()
                        .forEach(
                                (device, predictions) -> {
                                    NDList labels = data.getLabels().get(device);
                                    losses.add(
                                            Training.loss()
                                                    .evaluate(labels, predictions)
                                                    .getFloat());
                                    NDArray right = new Accuracy().evaluate(labels, predictions);
                                    hits.add(
                                            right.toType(DataType.FLOAT32, false)
                                                    .mean()
                                                    .getFloat());
                                });
            }

            @Override
            public void onEpoch(Trainer trainer) {
                reported.add(Map.copyOf(trainer.getTrainingResult().getEvaluations()));
            }
        };
    }
}
