// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Activation;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.training.ParameterStore;
import ai.djl.training.Trainer;
import ai.djl.training.TrainingConfig;
import ai.djl.training.dataset.BatchSampler;
import ai.djl.training.dataset.Sampler;
import ai.djl.training.dataset.SequenceSampler;
import ai.djl.training.initializer.Initializer;
import ai.djl.training.listener.EpochTrainingListener;
import ai.djl.training.listener.LoggingTrainingListener;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;
import ai.djl.util.PairList;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Consumer;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.engine.P2pEngine;
import org.djlx.collectives.gradient.GradientRule;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.collectives.spi.Backend;
import org.djlx.collectives.spi.BackendFactory;
import org.djlx.collectives.spi.Backends;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.spi.Support;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.Torch;
import org.djlx.training.Training.Outcome;
import org.djlx.training.data.DistributedSampler;
import org.djlx.training.internal.Replica;
import org.djlx.training.precision.MixedPrecisionPolicy;
import org.djlx.training.strategy.GradientCompression;
import org.djlx.training.strategy.ShardingStrategy;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** The same program with DJL's engine on one device, and with ours on several ranks. */
@Tag("slow")
class DataParallelTest {

    private static final float TOLERANCE = 2e-5f;
    // The last batch of an epoch has 1 item, so that most ranks have no part in it.
    private static final int ITEMS = 31;
    private static final int BATCH = 10;

    private static Sampler inOrder(int batch) {
        return new BatchSampler(new SequenceSampler(), batch);
    }

    private static Outcome reference(String optimizer, Sampler sampler) throws Exception {
        TrainingConfig config =
                new DefaultTrainingConfig(Training.loss())
                        .optOptimizer(Training.optimizer(optimizer));
        return Training.fit(
                "PyTorch", config, Training.block(), ITEMS, sampler, 3, 5, trainer -> {});
    }

    private static DataParallelConfig config(String optimizer) {
        DataParallelConfig config = new DataParallelConfig(Training.loss());
        config.optOptimizer(Training.optimizer(optimizer));
        return config;
    }

    static void assertSame(Outcome expected, Outcome actual) {
        assertEquals(expected.losses().size(), actual.losses().size());
        for (int i = 0; i < expected.losses().size(); i++) {
            assertEquals(expected.losses().get(i), actual.losses().get(i), TOLERANCE, "batch " + i);
        }
        for (int i = 0; i < expected.parameters().size(); i++) {
            assertArrayEquals(
                    expected.parameters().get(i),
                    actual.parameters().get(i),
                    TOLERANCE,
                    "parameter " + i);
        }
    }

    @ParameterizedTest
    @CsvSource({
        "sgd, 1",
        "sgd, 2",
        "sgd, 4",
        "adam, 1",
        "adam, 2",
        "adam, 4",
        "sgd, 8",
        "adam, 8",
        "momentum, 2",
        "momentum, 3"
    })
    void ranksOfOneJvmTrainAsOneDevice(String optimizer, int ranks) throws Exception {
        Outcome expected = reference(optimizer, inOrder(BATCH));
        // It learns, so that there is something to compare.
        assertTrue(expected.losses().get(11) < expected.losses().get(3) - 0.01f);
        // Buckets of one parameter, and one of all.
        for (long bucket : new long[] {1, 1 << 20}) {
            DataParallelConfig config = config(optimizer).optRanks(ranks).optBucketBytes(bucket);
            Outcome outcome =
                    Training.fit(
                            P2pEngine.NAME,
                            config,
                            Training.block(),
                            ITEMS,
                            inOrder(BATCH),
                            3,
                            5,
                            trainer -> {});
            assertSame(expected, outcome);
        }
    }

    /** CPU ranks of a model share its parameters and send nothing; with small buckets not. */
    @ParameterizedTest
    @CsvSource({"1048576, true", "64, false"})
    void ranksShareParametersUnlessBucketsAreSmall(long bucketBytes, boolean shared)
            throws Exception {
        Training.fit(
                P2pEngine.NAME,
                config("adam").optRanks(2).optBucketBytes(bucketBytes),
                Training.block(),
                ITEMS,
                inOrder(BATCH),
                1,
                5,
                trainer -> {
                    List<Replica> replicas = ((DataParallelTrainer) trainer).replicas();
                    for (int i = 0; i < 4; i++) {
                        long first = Torch.dataPointer(replicas.get(0).parameters().get(i).array());
                        long second =
                                Torch.dataPointer(replicas.get(1).parameters().get(i).array());
                        assertEquals(shared, first == second);
                    }
                });
    }

    /** A model of 2.2 MiB, of which each of up to 3 ranks updates a matrix. */
    private static SequentialBlock large() {
        return new SequentialBlock()
                .add(Linear.builder().setUnits(440).build())
                .add(Activation::tanh)
                .add(Linear.builder().setUnits(440).build())
                .add(Activation::tanh)
                .add(Linear.builder().setUnits(850).build())
                .add(Activation::tanh)
                .add(Linear.builder().setUnits(Training.CLASSES).build());
    }

    private static Outcome trainLarge(DataParallelConfig config) throws Exception {
        return Training.fit(
                P2pEngine.NAME, config, large(), ITEMS, inOrder(BATCH), 2, 5, trainer -> {});
    }

    /** The bits are those of ranks with copies, whose gradients a hook all-reduces. */
    @ParameterizedTest
    @CsvSource({"momentum, 2", "momentum, 3", "adam, 2", "adamW, 3"})
    void ranksOfALargeModelTrainAsRanksWithCopies(String optimizer, int ranks) throws Exception {
        Outcome copies =
                trainLarge(
                        config(optimizer)
                                .optRanks(ranks)
                                .optGradientHook(
                                        bucket ->
                                                bucket.group()
                                                        .allReduceCoalesced(
                                                                bucket.gradients(), bucket.op())));
        Outcome shared = trainLarge(config(optimizer).optRanks(ranks));
        assertEquals(copies.losses(), shared.losses());
        for (int i = 0; i < copies.parameters().size(); i++) {
            assertArrayEquals(copies.parameters().get(i), shared.parameters().get(i), "" + i);
        }
    }

    /** Notes which thread updates a parameter. */
    private static final class NotingOptimizer extends Optimizer {

        private static final class Builder extends OptimizerBuilder<Builder> {
            @Override
            protected Builder self() {
                return this;
            }
        }

        private final Map<String, List<String>> threads = new ConcurrentHashMap<>();

        NotingOptimizer() {
            super(new Builder());
        }

        @Override
        public void update(String id, NDArray weight, NDArray gradient) {
            threads.computeIfAbsent(id, unknown -> new CopyOnWriteArrayList<>())
                    .add(Thread.currentThread().getName());
            weight.subi(gradient);
        }
    }

    /** Each parameter of a large model has one rank that updates it, under the block's id. */
    @Test
    void ranksOfALargeModelDivideTheUpdate() throws Exception {
        NotingOptimizer optimizer = new NotingOptimizer();
        DataParallelConfig config = config("sgd").optRanks(2);
        config.optOptimizer(optimizer);
        Set<String> ids = new HashSet<>();
        Training.fit(
                P2pEngine.NAME,
                config,
                large(),
                ITEMS,
                inOrder(ITEMS),
                3,
                5,
                trainer ->
                        trainer.getModel()
                                .getBlock()
                                .getParameters()
                                .values()
                                .forEach(parameter -> ids.add(parameter.getId())));
        assertEquals(ids, optimizer.threads.keySet());
        Set<String> names = new HashSet<>();
        optimizer.threads.forEach(
                (id, threads) -> {
                    assertEquals(3, threads.size(), id);
                    assertEquals(1, Set.copyOf(threads).size(), threads::toString);
                    names.add(threads.get(0));
                });
        assertEquals(2, names.size(), names::toString);
    }

    /** Initial weights may come behind what initialises the trainer, also between predictions. */
    @ParameterizedTest
    @ValueSource(ints = {1, 2, 3})
    void writesBeforeTheFirstStepReachAllRanks(int ranks) throws Exception {
        Training.OnTrainer write =
                trainer -> {
                    NDManager manager = trainer.getManager();
                    NDArray[] arrays =
                            trainer.getModel().getBlock().getParameters().values().stream()
                                    .map(Parameter::getArray)
                                    .toArray(NDArray[]::new);
                    float[] values = NoGradient.get(() -> arrays[0].neg().toFloatArray());
                    NoGradient.run(() -> arrays[0].set(values));
                    Shape shape = new Shape(4, Training.FEATURES);
                    trainer.evaluate(new NDList(manager.ones(shape)));
                    NoGradient.run(() -> arrays[1].addi(0.25f));
                };
        TrainingConfig plain =
                new DefaultTrainingConfig(Training.loss()).optOptimizer(Training.optimizer("sgd"));
        Outcome expected =
                Training.fit(
                        "PyTorch", plain, Training.block(), ITEMS, inOrder(BATCH), 1, 5, write);
        Outcome outcome =
                Training.fit(
                        P2pEngine.NAME,
                        config("sgd").optRanks(ranks),
                        Training.block(),
                        ITEMS,
                        inOrder(BATCH),
                        1,
                        5,
                        write);
        assertSame(expected, outcome);
        assertTrue(
                Math.abs(
                                expected.losses().get(0)
                                        - reference("sgd", inOrder(BATCH)).losses().get(0))
                        > 0.01f);
    }

    /** The program is unchanged: a property says how many ranks there are. */
    @Test
    void systemPropertySetsRanks() throws Exception {
        Outcome expected = reference("sgd", inOrder(BATCH));
        TrainingConfig config =
                new DefaultTrainingConfig(Training.loss()).optOptimizer(Training.optimizer("sgd"));
        System.setProperty("org.djlx.ranks", "2");
        try {
            int[] ranks = new int[1];
            Outcome outcome =
                    Training.fit(
                            P2pEngine.NAME,
                            config,
                            Training.block(),
                            ITEMS,
                            inOrder(BATCH),
                            3,
                            5,
                            trainer ->
                                    ranks[0] = ((DataParallelTrainer) trainer).replicas().size());
            assertEquals(2, ranks[0]);
            assertSame(expected, outcome);
        } finally {
            System.clearProperty("org.djlx.ranks");
        }
    }

    /** Also with one rank, which uses none of these. */
    @ParameterizedTest
    @CsvSource({
        "ranks, 0, optRanks (or the system property org.djlx.ranks): 0 is out of range",
        "ranks, two, the system property org.djlx.ranks is not a number: two",
        "gradientReduction, mode, the system property org.djlx.gradientReduction must be one of",
        "gradientCompression, 8, the system property org.djlx.gradientCompression must be one of",
        "bucketBytes, 0, optBucketBytes (or the system property org.djlx.bucketBytes): 0 is out",
        "backend, foo, there is no backend 'foo'",
        "timeoutSeconds, -5, 'the system property org.djlx.timeoutSeconds must be 1 or more, not'",
        "syncBatchNorm, yes, the system property org.djlx.syncBatchNorm must be one of",
        "checkForward, yes, the system property org.djlx.checkForward must be one of",
        "join, yes, the system property org.djlx.join must be one of",
        "shardingStrategy, half, the system property org.djlx.shardingStrategy must be one of",
        "mixedPrecision, int8, the system property org.djlx.mixedPrecision must be one of"
    })
    void wrongPropertiesAreRefused(String name, String value, String message) {
        TrainingConfig config =
                new DefaultTrainingConfig(Training.loss()).optOptimizer(Training.optimizer("sgd"));
        System.setProperty("org.djlx." + name, value);
        try (Model model = Model.newInstance("model", P2pEngine.NAME)) {
            model.setBlock(Training.block());
            IllegalArgumentException e =
                    assertThrows(IllegalArgumentException.class, () -> model.newTrainer(config));
            assertTrue(e.getMessage().startsWith(message), e.getMessage());
        } finally {
            System.clearProperty("org.djlx." + name);
        }
    }

    /** Ranks with a trainer of their own, as processes are, each with half of every batch. */
    @ParameterizedTest
    @CsvSource({"sgd, 2", "adam, 2", "sgd, 4", "adam, 4", "sgd, 8", "adam, 8"})
    void trainersOfAGroupTrainAsOneDevice(String optimizer, int ranks) throws Exception {
        int items = 32;
        Sampler whole = DistributedSampler.builder().setBatchSize(8).optSeed(3).build();
        TrainingConfig plain =
                new DefaultTrainingConfig(Training.loss())
                        .optOptimizer(Training.optimizer(optimizer));
        Outcome expected =
                Training.fit("PyTorch", plain, Training.block(), items, whole, 3, 5, trainer -> {});
        List<ProcessGroup> groups = ProcessGroups.local(ranks);
        SequentialBlock[] blocks = new SequentialBlock[ranks];
        for (int i = 0; i < ranks; i++) {
            blocks[i] = Training.block();
        }
        try {
            List<Outcome> outcomes =
                    ProcessGroups.run(
                            groups,
                            group -> {
                                DataParallelConfig config =
                                        config(optimizer)
                                                .optProcessGroup(group)
                                                .optGradientReduction(GradientReduction.MEAN);
                                Sampler sampler =
                                        DistributedSampler.builder()
                                                .setBatchSize(8 / ranks)
                                                .optSeed(3)
                                                .optGroup(group)
                                                .build();
                                return Training.fit(
                                        P2pEngine.NAME,
                                        config,
                                        blocks[group.rank()],
                                        items,
                                        sampler,
                                        3,
                                        5 + group.rank(), // those of rank 0 are everybody's
                                        trainer -> {});
                            });
            for (int i = 0; i < expected.losses().size(); i++) {
                float mean = 0;
                for (Outcome outcome : outcomes) {
                    mean += outcome.losses().get(i) / ranks;
                }
                assertEquals(expected.losses().get(i), mean, TOLERANCE, "batch " + i);
            }
            for (int i = 0; i < expected.parameters().size(); i++) {
                float[] own = outcomes.get(0).parameters().get(i);
                assertArrayEquals(expected.parameters().get(i), own, TOLERANCE);
                for (Outcome outcome : outcomes) {
                    assertArrayEquals(own, outcome.parameters().get(i), 0);
                }
            }
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    private static final class CountingLog extends LoggingTrainingListener {

        private int epochs;

        @Override
        public void onEpoch(Trainer trainer) {
            epochs++;
        }

        @Override
        public void onTrainingBatch(Trainer trainer, BatchData batchData) {
            // No progress bar in the output of tests.
        }
    }

    /** What writes logs hears of nothing on other ranks than the first; what computes does. */
    @Test
    void onlyTheFirstProcessLogs() {
        List<ProcessGroup> groups = ProcessGroups.local(3);
        try {
            List<List<Integer>> counts =
                    ProcessGroups.run(
                            groups,
                            group -> {
                                CountingLog log = new CountingLog();
                                EpochTrainingListener epochs = new EpochTrainingListener();
                                DataParallelConfig config = config("sgd").optProcessGroup(group);
                                config.addTrainingListeners(log, epochs);
                                Training.fit(
                                        P2pEngine.NAME,
                                        config,
                                        Training.block(),
                                        10,
                                        inOrder(5),
                                        2,
                                        5,
                                        trainer -> {});
                                return List.of(log.epochs, epochs.getNumEpochs());
                            });
            assertEquals(List.of(List.of(2, 2), List.of(0, 2), List.of(0, 2)), counts);
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    /** Trainers of one rank each, which know nothing of each other but for the listener. */
    @ParameterizedTest
    @ValueSource(ints = {2, 3})
    void synchronizerReducesGradients(int ranks) throws Exception {
        Sampler whole = DistributedSampler.builder().setBatchSize(4 * ranks).optSeed(3).build();
        Outcome expected = reference("adam", whole);
        List<ProcessGroup> groups = ProcessGroups.local(ranks);
        try {
            List<Outcome> outcomes =
                    ProcessGroups.run(
                            groups,
                            group -> {
                                SequentialBlock block = Training.block();
                                DefaultTrainingConfig config =
                                        new DefaultTrainingConfig(Training.loss())
                                                .optOptimizer(Training.optimizer("adam"))
                                                .addTrainingListeners(
                                                        new GradientSynchronizer(
                                                                group, GradientReduction.MEAN));
                                Sampler sampler =
                                        DistributedSampler.builder()
                                                .setBatchSize(4)
                                                .optSeed(3)
                                                .optGroup(group)
                                                .build();
                                return Training.fit(
                                        P2pEngine.NAME,
                                        config,
                                        block,
                                        ITEMS,
                                        sampler,
                                        3,
                                        5 + group.rank(),
                                        trainer ->
                                                GradientSynchronizer.broadcastParameters(
                                                        block, group));
                            });
            for (Outcome outcome : outcomes) {
                for (int i = 0; i < expected.parameters().size(); i++) {
                    assertArrayEquals(
                            expected.parameters().get(i), outcome.parameters().get(i), TOLERANCE);
                }
            }
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    /** Each process has a loss of its own; their sum is what SUM goes down on. */
    @Test
    void processesAverageByDefault() throws Exception {
        List<ProcessGroup> groups = ProcessGroups.local(2);
        try {
            List<float[]> gradients =
                    ProcessGroups.run(
                            groups,
                            group -> {
                                DataParallelConfig config = config("sgd").optProcessGroup(group);
                                SequentialBlock block = new SequentialBlock();
                                block.add(Linear.builder().setUnits(1).optBias(false).build());
                                block.setInitializer(Initializer.ONES, Parameter.Type.WEIGHT);
                                try (Model model = Model.newInstance("sum", P2pEngine.NAME)) {
                                    model.setBlock(block);
                                    try (Trainer trainer = model.newTrainer(config)) {
                                        trainer.initialize(new Shape(1, 2));
                                        NDManager manager = trainer.getManager();
                                        try (GradientCollector collector =
                                                trainer.newGradientCollector()) {
                                            float own = group.rank() + 1;
                                            NDArray x =
                                                    manager.create(
                                                            new float[] {own, 10 * own},
                                                            new Shape(1, 2));
                                            NDList y = trainer.forward(new NDList(x));
                                            collector.backward(y.head().sum());
                                        }
                                        trainer.step();
                                    }
                                    return block.getParameters()
                                            .valueAt(0)
                                            .getArray()
                                            .toFloatArray();
                                }
                            });
            for (float[] weights : gradients) {
                // A rate of 0.05, and gradients of (1 + 2) / 2 and (10 + 20) / 2.
                assertArrayEquals(new float[] {1 - 0.075f, 1 - 0.75f}, weights, 1e-6f);
            }
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    /** They have one loss, of which there is no mean to take. */
    /** Engine PyTorch would train on one rank, and ignore the options. */
    @Test
    void otherEnginesRejectOptionsOfRanks() {
        try (Model model = Model.newInstance("plain", "PyTorch")) {
            model.setBlock(Training.block());
            for (DataParallelConfig ignored :
                    List.of(
                            config("sgd").optRanks(2),
                            config("sgd").optMixedPrecision(MixedPrecisionPolicy.BFLOAT16),
                            config("sgd").optShardingStrategy(ShardingStrategy.FULL_SHARD))) {
                String message =
                        assertThrows(IllegalStateException.class, () -> model.newTrainer(ignored))
                                .getMessage();
                assertTrue(message.contains("PyTorch-P2P"), message);
            }
            model.newTrainer(config("sgd").optRanks(1)).close();
        }
    }

    @Test
    void ranksOfOneJvmRejectMean() throws Exception {
        try (Model model = Model.newInstance("mean", P2pEngine.NAME)) {
            model.setBlock(Training.block());
            DataParallelConfig config =
                    config("sgd").optGradientReduction(GradientReduction.MEAN).optRanks(2);
            String message =
                    assertThrows(IllegalArgumentException.class, () -> model.newTrainer(config))
                            .getMessage();
            assertTrue(message.contains("the 2 ranks of this JVM compute one loss"), message);
            assertTrue(message.contains("-Dorg.djlx.gradientReduction=MEAN"), message);
            model.newTrainer(config.optRanks(1)).close(); // Its own gradient is the mean.
        }
    }

    /** The property is for processes, and may be there for all programs. */
    @Test
    void ranksOfOneJvmTrainAsOneDeviceBesideAPropertyForProcesses() throws Exception {
        System.setProperty("org.djlx.gradientReduction", "MEAN");
        try {
            Outcome outcome =
                    Training.fit(
                            P2pEngine.NAME,
                            config("sgd").optRanks(2),
                            Training.block(),
                            ITEMS,
                            inOrder(BATCH),
                            3,
                            5,
                            trainer -> {});
            assertSame(reference("sgd", inOrder(BATCH)), outcome);
        } finally {
            System.clearProperty("org.djlx.gradientReduction");
        }
    }

    /** A parameter that drifts away on one rank is found when the trainer is closed. */
    @Test
    void closeReportsParametersThatDiffer() {
        List<ProcessGroup> groups = ProcessGroups.local(2);
        try {
            CollectiveException e =
                    assertThrows(
                            CollectiveException.class,
                            () ->
                                    ProcessGroups.run(
                                            groups,
                                            group ->
                                                    Training.fit(
                                                            P2pEngine.NAME,
                                                            config("sgd").optProcessGroup(group),
                                                            Training.block(),
                                                            10,
                                                            inOrder(5),
                                                            1,
                                                            5,
                                                            trainer -> drift(group, trainer))));
            assertTrue(
                    e.getMessage()
                            .contains("the parameters of ranks [1] differ from those of rank 0"),
                    e.getMessage());
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    private static void drift(ProcessGroup group, Trainer trainer) {
        if (group.rank() == 1) {
            NDArray weight = trainer.getModel().getBlock().getParameters().valueAt(0).getArray();
            NoGradient.run(() -> weight.addi(0.25f));
        }
    }

    /** Adds a parameter of its own, and has one that it does not use. */
    private static final class Partly extends AbstractBlock {

        private final Parameter used = addParameter(parameter("used"));

        Partly() {
            addParameter(parameter("unused"));
        }

        private static Parameter parameter(String name) {
            return Parameter.builder()
                    .setName(name)
                    .setType(Parameter.Type.WEIGHT)
                    .optShape(new Shape(Training.FEATURES))
                    .build();
        }

        @Override
        protected NDList forwardInternal(
                ParameterStore store,
                NDList inputs,
                boolean training,
                PairList<String, Object> params) {
            NDArray x = inputs.head();
            return new NDList(x.add(store.getValue(used, x.getDevice(), training)));
        }

        @Override
        public Shape[] getOutputShapes(Shape[] inputShapes) {
            return inputShapes;
        }
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 2})
    void frozenAndUnusedParametersStay(int ranks) throws Exception {
        SequentialBlock block = new SequentialBlock().add(new Partly()).add(Training.block());
        List<float[]> initial = new ArrayList<>();
        Outcome outcome =
                Training.fit(
                        P2pEngine.NAME,
                        config("sgd").optRanks(ranks),
                        block,
                        20,
                        inOrder(5),
                        1,
                        5,
                        trainer -> {
                            block.getParameters().valueAt(2).freeze(true);
                            for (Parameter parameter : block.getParameters().values()) {
                                initial.add(
                                        NoGradient.get(() -> parameter.getArray().toFloatArray()));
                            }
                        });
        List<String> names = block.getParameters().keys();
        for (int i = 0; i < initial.size(); i++) {
            boolean stays = i == 2 || names.get(i).contains("unused");
            assertEquals(
                    stays,
                    Arrays.equals(initial.get(i), outcome.parameters().get(i)),
                    names.get(i));
        }
    }

    @Test
    void stepWithoutBackwardIsRejected() throws Exception {
        for (int ranks : new int[] {1, 2}) {
            try (Model model = Model.newInstance("none", P2pEngine.NAME)) {
                model.setBlock(Training.block());
                Trainer closed;
                try (Trainer trainer = model.newTrainer(config("sgd").optRanks(ranks))) {
                    trainer.initialize(new Shape(1, Training.FEATURES));
                    for (int i = 0; i < 2; i++) { // It can be mended.
                        RuntimeException e = assertThrows(RuntimeException.class, trainer::step);
                        String message = e.getMessage();
                        assertTrue(message.contains("all gradients are zero"), message);
                    }
                    closed = trainer;
                }
                RuntimeException e = assertThrows(RuntimeException.class, closed::step);
                assertTrue(e.getMessage().contains("is closed"), e.getMessage());
            }
        }
    }

    /** A rank that fails does not leave the others waiting; the error says which it was. */
    @Test
    void failureNamesTheRank() throws Exception {
        SequentialBlock block = new SequentialBlock();
        block.add(
                list -> {
                    if (list.head().getShape().get(0) == 3) {
                        throw new IllegalStateException("a part of three");
                    }
                    return list;
                });
        block.add(Training.block());
        try (Model model = Model.newInstance("failing", P2pEngine.NAME)) {
            model.setBlock(block);
            try (Trainer trainer = model.newTrainer(config("sgd").optRanks(2))) {
                trainer.initialize(new Shape(1, Training.FEATURES));
                NDArray x = trainer.getManager().ones(new Shape(5, Training.FEATURES));
                IllegalStateException e;
                try (GradientCollector collector = trainer.newGradientCollector()) {
                    assertNotNull(collector);
                    e =
                            assertThrows(
                                    IllegalStateException.class,
                                    () -> trainer.forward(new NDList(x)));
                }
                assertEquals("a part of three", e.getMessage());
                String rank = e.getSuppressed()[0].getMessage();
                assertTrue(rank.startsWith("rank 1 of the trainer"), rank);
                // No rank waited for another: the trainer goes on.
                NDArray fewer = trainer.getManager().ones(new Shape(4, Training.FEATURES));
                assertEquals(4, trainer.evaluate(new NDList(fewer)).head().getShape().get(0));
            }
        }
    }

    private static final class Failing extends Optimizer {

        private static final class Builder extends OptimizerBuilder<Builder> {
            @Override
            protected Builder self() {
                return this;
            }
        }

        Failing() {
            super(new Builder());
        }

        @Override
        public void update(String id, NDArray weight, NDArray gradient) {
            throw new IllegalStateException("no update today");
        }
    }

    /** Ranks whose updates failed may differ: whatever is called then says why. */
    @Test
    void trainerIsUnusableAfterAFailure() throws Exception {
        try (Model model = Model.newInstance("failed", P2pEngine.NAME)) {
            model.setBlock(Training.block());
            DataParallelConfig config = config("sgd").optRanks(2);
            config.optOptimizer(new Failing());
            try (Trainer trainer = model.newTrainer(config)) {
                trainer.initialize(new Shape(1, Training.FEATURES));
                NDArray x = trainer.getManager().ones(new Shape(4, Training.FEATURES));
                try (GradientCollector collector = trainer.newGradientCollector()) {
                    collector.backward(trainer.forward(new NDList(x)).head().sum());
                }
                assertThrows(IllegalStateException.class, trainer::step);
                for (Executable call :
                        List.<Executable>of(
                                trainer::step,
                                () -> trainer.forward(new NDList(x)),
                                () -> trainer.evaluate(new NDList(x)),
                                trainer::newGradientCollector)) {
                    String message = assertThrows(IllegalStateException.class, call).getMessage();
                    assertTrue(message.contains("no update today"), message);
                }
            }
        }
    }

    /** What a step makes is closed with the batch: the number of arrays does not grow. */
    @Test
    void closeFreesThreadsAndArrays() throws Exception {
        for (int ranks : new int[] {1, 2}) {
            int[] counts = new int[2];
            try (Model model = Model.newInstance("flat", P2pEngine.NAME)) {
                model.setBlock(Training.block());
                try (Trainer trainer = model.newTrainer(config("adam").optRanks(ranks))) {
                    trainer.initialize(new Shape(1, Training.FEATURES));
                    NDManager system = model.getNDManager().getParentManager();
                    for (int step = 0; step < 20; step++) {
                        try (NDManager manager = trainer.getManager().newSubManager()) {
                            NDArray x = manager.ones(new Shape(4, Training.FEATURES));
                            try (GradientCollector collector = trainer.newGradientCollector()) {
                                NDArray y = trainer.forward(new NDList(x)).head();
                                collector.backward(y.square().sum());
                            }
                            trainer.step();
                        }
                        counts[step < 10 ? 0 : 1] =
                                system.getManagedArrays().size()
                                        + trainer.getManager().getManagedArrays().size()
                                        + model.getNDManager().getManagedArrays().size();
                    }
                }
            }
            assertEquals(counts[0], counts[1]);
        }
    }

    /** Changes itself when it is first asked in a step, and takes its time. */
    private static final class Decay implements Tracker {

        private int last;
        private final AtomicInteger changes = new AtomicInteger();

        @Override
        public float getNewValue(int update) {
            if (update > last) {
                changes.incrementAndGet();
                LockSupport.parkNanos(20_000_000); // Others would come in meanwhile.
                last = update;
            }
            return 0.1f / update;
        }
    }

    /** Ranks of a JVM share the tracker of learning rates, of which DJL's change themselves too. */
    @Test
    void trackerAdvancesOncePerStep() throws Exception {
        Decay decay = new Decay();
        DataParallelConfig config = config("sgd").optRanks(4);
        config.optOptimizer(Optimizer.sgd().setLearningRateTracker(decay).build());
        Training.fit(
                P2pEngine.NAME,
                config,
                Training.block(),
                ITEMS,
                inOrder(BATCH),
                3,
                5,
                trainer -> {});
        assertEquals(12, decay.changes.get());
    }

    /** What is reduced while a pass goes back is neither lost nor added twice by the next. */
    @ParameterizedTest
    @CsvSource({"1, false", "1, true", "2, false", "2, true", "3, true"})
    void gradientsOfSeveralPassesAddUp(int ranks, boolean together) throws Exception {
        GradientCompression none = GradientCompression.NONE;
        float[][] expected = accumulate("PyTorch", 1, none, together);
        float[][] actual = accumulate(P2pEngine.NAME, ranks, none, together);
        for (int i = 0; i < expected.length; i++) {
            assertArrayEquals(expected[i], actual[i], TOLERANCE, "parameter " + i);
        }
    }

    static float[][] accumulate(
            String engine, int ranks, GradientCompression compression, boolean together)
            throws Exception {
        DataParallelConfig config =
                config("momentum").optRanks(ranks).optBucketBytes(64).optGradientHook(compression);
        SequentialBlock block = Training.block();
        List<float[]> parameters = new ArrayList<>();
        Training.fit(
                engine,
                config,
                block,
                4,
                inOrder(4),
                1,
                5,
                trainer -> {
                    for (int step = 0; step < 3; step++) {
                        passes(trainer, step, together);
                        trainer.step();
                    }
                    try (GradientCollector collector = trainer.newGradientCollector()) {
                        NDArray x = trainer.getManager().ones(new Shape(3, Training.FEATURES));
                        collector.backward(trainer.forward(new NDList(x)).head().square().sum());
                        if (engine.equals(P2pEngine.NAME)) {
                            collector.zeroGradients();
                        } else {
                            for (Parameter parameter : block.getParameters().values()) {
                                try (NDArray gradient = parameter.getArray().getGradient()) {
                                    gradient.subi(gradient.duplicate());
                                }
                            }
                        }
                    }
                    passes(trainer, 9, together);
                    trainer.step();
                    for (Parameter parameter : block.getParameters().values()) {
                        parameters.add(NoGradient.get(() -> parameter.getArray().toFloatArray()));
                    }
                });
        return parameters.toArray(float[][]::new);
    }

    /** Three batches, with a loss of all together or with one for each. */
    private static void passes(Trainer trainer, int seed, boolean together) {
        Random random = new Random(seed);
        try (NDManager manager = trainer.getManager().newSubManager();
                GradientCollector collector = trainer.newGradientCollector()) {
            NDArray sum = null;
            for (int i = 0; i < 3; i++) {
                float[] values = new float[5 * Training.FEATURES];
                for (int k = 0; k < values.length; k++) {
                    values[k] = random.nextFloat() - 0.5f;
                }
                NDArray x = manager.create(values, new Shape(5, Training.FEATURES));
                NDArray loss = trainer.forward(new NDList(x)).head().square().mean();
                if (together) {
                    sum = sum == null ? loss : sum.add(loss);
                } else {
                    collector.backward(loss);
                }
            }
            if (together) {
                collector.backward(sum);
            }
        }
    }

    /** Gradients of later layers are on their way before those of earlier ones are computed. */
    @Test
    void bucketsAreReducedDuringTheBackwardPass() {
        List<ProcessGroup> groups = ProcessGroups.local(2);
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        assertReducedDuringBackward(config("sgd").optProcessGroup(group));
                        return null;
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    @Test
    void bucketsOfRanksInOneJvmAreReducedDuringTheBackwardPass() {
        assertReducedDuringBackward(config("sgd").optRanks(2));
    }

    /** Tells when the way back passes it, and on which rank. */
    private static final class Watch extends AbstractBlock {

        private final Consumer<ParameterStore> passed;

        Watch(Consumer<ParameterStore> passed) {
            this.passed = passed;
        }

        @Override
        protected NDList forwardInternal(
                ParameterStore store,
                NDList inputs,
                boolean training,
                PairList<String, Object> params) {
            NDArray x = inputs.singletonOrThrow();
            NDArray same = x.stopGradient();
            GradientRule rule =
                    (ins, kept, gradients) -> {
                        passed.accept(store);
                        return gradients;
                    };
            GradientScope scope = GradientScope.current().orElseThrow();
            scope.record("a watch", List.of(x), List.of(), List.of(same), rule);
            return new NDList(same);
        }

        @Override
        public Shape[] getOutputShapes(Shape[] inputShapes) {
            return inputShapes;
        }
    }

    /**
     * Of a model of two buckets, of which the first has two layers, or of one, whose gradients the
     * caller's thread adds without a reduction.
     */
    @ParameterizedTest
    @CsvSource({"268, 0, 1, 2", "1000, 0, 0, 0"})
    void bucketsOfSeveralLayersAreReducedWhenTheyAreComplete(
            long bytes, int atSecond, int atFirst, int all) {
        DataParallelConfig config = config("sgd").optRanks(2).optBucketBytes(bytes);
        assertReducedDuringBackward(config, atSecond, atFirst, all);
    }

    private static void assertReducedDuringBackward(DataParallelConfig config) {
        // Of 3 layers with 2 parameters each, those behind the place that is passed.
        assertReducedDuringBackward(config.optBucketBytes(1), 2, 4, 6);
    }

    private static void assertReducedDuringBackward(
            DataParallelConfig config, int atSecond, int atFirst, int all) {
        Trainer[] training = new Trainer[1];
        Map<ProcessGroup, List<Integer>> counts = new ConcurrentHashMap<>();
        Consumer<ParameterStore> note =
                store -> {
                    ProcessGroup group = group(training[0], store);
                    counts.get(group).addAll(count(List.of(group), "allReduce"));
                };
        SequentialBlock block =
                new SequentialBlock()
                        .add(Linear.builder().setUnits(4).build())
                        .add(new Watch(note))
                        .add(
                                new SequentialBlock()
                                        .add(Linear.builder().setUnits(8).build())
                                        .add(new Watch(note)))
                        .add(Linear.builder().setUnits(3).build());
        try (Model model = Model.newInstance("overlap", P2pEngine.NAME)) {
            model.setBlock(block);
            try (Trainer trainer = model.newTrainer(config.optCheckForward(false))) {
                training[0] = trainer;
                trainer.initialize(new Shape(1, 3));
                List<ProcessGroup> groups = groups(trainer);
                groups.forEach(group -> counts.put(group, new ArrayList<>()));
                List<Integer> before = count(groups, "allReduce");
                try (GradientCollector collector = trainer.newGradientCollector()) {
                    NDArray x = trainer.getManager().ones(new Shape(5, 3));
                    NDArray y = trainer.forward(new NDList(x)).head();
                    assertEquals(before, count(groups, "allReduce"));
                    collector.backward(y.square().sum());
                }
                for (int i = 0; i < groups.size(); i++) {
                    int none = before.get(i);
                    List<Integer> expected = List.of(none + atSecond, none + atFirst);
                    assertEquals(expected, counts.get(groups.get(i)));
                }
                assertEquals(plus(before, all), count(groups, "allReduce"));
                trainer.step();
                assertEquals(plus(before, all), count(groups, "allReduce"));
            }
        }
    }

    /** The program's own operator adds to a gradient that the ranks have reduced already. */
    @Test
    void gradientsOfAnOperatorBeforeThePassReachAllRanks() {
        SequentialBlock block =
                new SequentialBlock().add(Linear.builder().setUnits(1).optBias(false).build());
        block.setInitializer(Initializer.ZEROS, Parameter.Type.WEIGHT);
        try (Model model = Model.newInstance("operator", P2pEngine.NAME)) {
            model.setBlock(block);
            try (DataParallelTrainer trainer =
                    (DataParallelTrainer) model.newTrainer(config("sgd").optRanks(2))) {
                trainer.initialize(new Shape(1, 2));
                NDArray weight = trainer.replicas().get(0).parameters().get(0).array();
                try (GradientCollector collector = trainer.newGradientCollector()) {
                    NDArray x = trainer.getManager().ones(new Shape(4, 2));
                    NDArray same = weight.stopGradient();
                    GradientRule rule = (inputs, kept, gradients) -> gradients;
                    GradientScope scope = GradientScope.current().orElseThrow();
                    scope.record("same", List.of(weight), List.of(), List.of(same), rule);
                    NDArray y = trainer.forward(new NDList(x)).head();
                    collector.backward(y.sum().add(same.sum().mul(10)));
                }
                trainer.step();
                for (Replica replica : trainer.replicas()) {
                    NDArray own = replica.parameters().get(0).array();
                    float[] values = NoGradient.get(own::toFloatArray);
                    // 4 rows of ones, and 10; the rate is 0.05
                    assertArrayEquals(new float[] {-0.7f, -0.7f}, values, 1e-6f);
                }
            }
        }
    }

    /**
     * Their checksums are gathered when they are given to the ranks, and at the end. At the start,
     * two more gathers compare the options: lengths and texts.
     */
    @Test
    void parametersAreComparedAtStartAndClose() {
        List<ProcessGroup> groups = ProcessGroups.local(2);
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        List<ProcessGroup> own = List.of(group);
                        try (Model model = Model.newInstance("compared", P2pEngine.NAME)) {
                            model.setBlock(Training.block());
                            Trainer trainer =
                                    model.newTrainer(config("sgd").optProcessGroup(group));
                            List<Integer> before = count(own, "allGather");
                            trainer.initialize(new Shape(1, Training.FEATURES));
                            List<Integer> begun = count(own, "allGather");
                            assertEquals(plus(before, 3), begun);
                            trainer.close();
                            assertEquals(plus(begun, 1), count(own, "allGather"));
                        }
                        return null;
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    /** Returns the groups of the ranks that a trainer has here. */
    private static List<ProcessGroup> groups(Trainer trainer) {
        return ((DataParallelTrainer) trainer).replicas().stream().map(Replica::group).toList();
    }

    /** Returns the group of the rank whose arrays a store has. */
    private static ProcessGroup group(Trainer trainer, ParameterStore store) {
        return ((DataParallelTrainer) trainer)
                .replicas().stream()
                        .filter(replica -> replica.store() == store)
                        .map(Replica::group)
                        .findFirst()
                        .orElseThrow();
    }

    private static List<Integer> plus(List<Integer> counts, int more) {
        return counts.stream().map(count -> count + more).toList();
    }

    /** Returns how many operations whose name begins so each group has recorded. */
    private static List<Integer> count(List<ProcessGroup> groups, String operation) {
        return groups.stream()
                .map(
                        group ->
                                (int)
                                        group.flightRecorder().dump().entries().stream()
                                                .filter(e -> e.toString().contains(operation))
                                                .count())
                .toList();
    }

    /** A factory of {@code shm} that notes the timeouts of its groups. */
    private record TimedFactory(List<Duration> timeouts) implements BackendFactory {

        @Override
        public String name() {
            return "timed";
        }

        @Override
        public Support support() {
            return Backends.get("shm").support();
        }

        @Override
        public Backend create(GroupContext context) {
            timeouts.add(context.options().timeout());
            return Backends.get("shm").create(context);
        }
    }

    @Test
    void optTimeoutSetsTheGroupsTimeout() {
        List<Duration> timeouts = Collections.synchronizedList(new ArrayList<>());
        Backends.register("timed", new TimedFactory(timeouts));
        Duration timeout = Duration.ofSeconds(7);
        DataParallelConfig config =
                new DataParallelConfig(Training.loss()).optBackend("timed").optTimeout(timeout);
        config.optRanks(2).optDevices(new Device[] {Device.cpu()});
        try (Model model = Model.newInstance("timed", P2pEngine.NAME)) {
            model.setBlock(Training.block());
            model.newTrainer(config).close();
        }
        assertEquals(List.of(timeout, timeout), timeouts);
        assertThrows(IllegalArgumentException.class, () -> config.optTimeout(Duration.ZERO));
        assertThrows(IllegalArgumentException.class, () -> config.optTimeout(null));
    }
}
