// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.EasyTrain;
import ai.djl.training.Trainer;
import ai.djl.training.dataset.ArrayDataset;
import ai.djl.training.dataset.BatchSampler;
import ai.djl.training.dataset.Sampler;
import ai.djl.training.dataset.SequenceSampler;
import ai.djl.training.evaluator.Accuracy;
import ai.djl.training.evaluator.Evaluator;
import ai.djl.training.evaluator.IndexEvaluator;
import ai.djl.training.listener.EarlyStoppingListener.EarlyStoppedException;
import ai.djl.training.listener.EpochTrainingListener;
import ai.djl.training.listener.EvaluatorTrainingListener;
import ai.djl.training.listener.TrainingListener;
import ai.djl.training.listener.TrainingListenerAdapter;
import ai.djl.training.loss.SoftmaxCrossEntropyLoss;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.IntStream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.engine.P2pEngine;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Evaluators of ranks with a trainer each, as processes have. */
@Timeout(120)
class JobEvaluatorsTest {

    private static final int ITEMS = 32;

    private abstract static class Own extends Evaluator {

        Own(String name) {
            super(name);
        }

        @Override
        public NDArray evaluate(NDList labels, NDList predictions) {
            return predictions.head();
        }

        @Override
        public void addAccumulator(String key) {
            resetAccumulator(key);
        }
    }

    /** In a map of the type in which DJL's losses keep sums. */
    private static final class MaxError extends Own {

        private final Map<String, Float> values = new HashMap<>();

        MaxError() {
            super("MaxError");
        }

        @Override
        public void resetAccumulator(String key) {
            values.put(key, 0f);
        }

        @Override
        public void updateAccumulator(String key, NDList labels, NDList predictions) {
            values.merge(key, predictions.head().abs().max().getFloat(), Math::max);
        }

        @Override
        public float getAccumulator(String key) {
            return values.get(key);
        }
    }

    private static final class F1 extends Own {

        private final Map<String, long[]> counts = new HashMap<>();

        F1() {
            super("F1");
        }

        @Override
        public void resetAccumulator(String key) {
            counts.put(key, new long[3]);
        }

        @Override
        public void updateAccumulator(String key, NDList labels, NDList predictions) {
            long[] y = labels.head().toType(DataType.INT64, true).toLongArray();
            long[] of = predictions.head().argMax(-1).toLongArray();
            long[] own = counts.get(key);
            for (int i = 0; i < y.length; i++) {
                int outcome = of[i] == 1 ? (y[i] == 1 ? 0 : 1) : y[i] == 1 ? 2 : -1;
                if (outcome >= 0) {
                    own[outcome]++;
                }
            }
        }

        @Override
        public float getAccumulator(String key) {
            long[] own = counts.get(key);
            return 2f * own[0] / Math.max(1, 2 * own[0] + own[1] + own[2]);
        }
    }

    /** Known to be a sum: DJL's class keeps it. */
    private static final class OwnLoss extends SoftmaxCrossEntropyLoss {}

    private interface Extra {
        List<TrainingListener> listeners(int rank);
    }

    private static ArrayDataset data(NDManager manager, int from, int to, int batch) {
        NDArray x = manager.arange(ITEMS * Training.FEATURES).mul(0.7f).sin();
        NDArray rows = x.reshape(ITEMS, Training.FEATURES).get(from + ":" + to);
        NDArray y = rows.sum(new int[] {1}).mul(5).sin().add(1).mul(1.49f).floor();
        Sampler sampler = new BatchSampler(new SequenceSampler(), batch);
        return new ArrayDataset.Builder().setData(rows).optLabels(y).setSampling(sampler).build();
    }

    /** Trains three epochs on this rank's share of the items; returns the results of each epoch. */
    private static List<Map<String, Float>> fit(
            DefaultTrainingConfig config, String engine, int rank, int ranks, Extra extra)
            throws Exception {
        List<Map<String, Float>> results = new ArrayList<>();
        config.optOptimizer(Training.optimizer("sgd"))
                .addEvaluator(new F1())
                .addEvaluator(new Accuracy())
                .addEvaluator(new MaxError())
                .addEvaluator(new IndexEvaluator(new MaxErrorOfIndex(), 0))
                .addTrainingListeners(new EpochTrainingListener(), new EvaluatorTrainingListener())
                .addTrainingListeners(
                        new TrainingListenerAdapter() {
                            @Override
                            public void onEpoch(Trainer trainer) {
                                results.add(
                                        new TreeMap<>(
                                                trainer.getTrainingResult().getEvaluations()));
                            }
                        })
                .addTrainingListeners(extra.listeners(rank).toArray(TrainingListener[]::new));
        SequentialBlock block = Training.block();
        block.setInitializer(Training.weights(5), Parameter.Type.WEIGHT);
        try (Model model = Model.newInstance("model", engine)) {
            model.setBlock(block);
            try (Trainer trainer = model.newTrainer(config)) {
                trainer.initialize(new Shape(1, Training.FEATURES));
                // Process 0 has fewer items if there are two.
                int middle = ranks == 1 ? ITEMS : 8;
                int from = rank == 0 ? 0 : middle;
                int to = rank == 0 ? middle : ITEMS;
                int batch = ranks == 1 ? 8 : rank == 0 ? 2 : 6;
                NDManager manager = trainer.getManager();
                EasyTrain.fit(
                        trainer,
                        3,
                        data(manager, from, to, batch),
                        data(manager, rank == 0 ? 0 : 4, ranks == 1 ? 16 : rank == 0 ? 4 : 16, 4));
            }
        }
        return results;
    }

    private static final class MaxErrorOfIndex extends Own {

        private final MaxError own = new MaxError();

        MaxErrorOfIndex() {
            super("MaxErrorOfIndex");
        }

        @Override
        public void resetAccumulator(String key) {
            own.resetAccumulator(key);
        }

        @Override
        public void updateAccumulator(String key, NDList labels, NDList predictions) {
            own.updateAccumulator(key, labels, predictions);
        }

        @Override
        public float getAccumulator(String key) {
            return own.getAccumulator(key);
        }
    }

    private static List<List<Map<String, Float>>> onTwo(boolean join, Extra extra) {
        List<ProcessGroup> groups = ProcessGroups.local(2);
        try {
            return ProcessGroups.run(
                    groups,
                    group ->
                            fit(
                                    new DataParallelConfig(new OwnLoss())
                                            .optGradientReduction(GradientReduction.SUM)
                                            .optJoin(join)
                                            .optProcessGroup(group),
                                    P2pEngine.NAME,
                                    group.rank(),
                                    2,
                                    extra));
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    /**
     * A training step with the summed losses of parts of 2 and 6 rows is none of one device, so the
     * evaluators are compared with those of all predictions, which the processes keep.
     */
    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void evaluatorsCoverAllProcesses(boolean join) throws Exception {
        List<Map<String, List<NDList>>> kept = List.of(new HashMap<>(), new HashMap<>());
        NDManager manager = NDManager.newBaseManager("PyTorch");
        List<Map<String, Float>> expected = new ArrayList<>();
        try (manager) {
            Extra keeping =
                    rank ->
                            List.of(
                                    new TrainingListenerAdapter() {
                                        @Override
                                        public void onTrainingBatch(Trainer trainer, BatchData b) {
                                            keep(EvaluatorTrainingListener.TRAIN_EPOCH, b);
                                        }

                                        @Override
                                        public void onValidationBatch(
                                                Trainer trainer, BatchData b) {
                                            keep(EvaluatorTrainingListener.VALIDATE_EPOCH, b);
                                        }

                                        private void keep(String key, BatchData batch) {
                                            for (Map<?, NDList> of :
                                                    List.of(
                                                            batch.getLabels(),
                                                            batch.getPredictions())) {
                                                byte[] bytes =
                                                        of.values().iterator().next().encode();
                                                NDList copy = NDList.decode(manager, bytes);
                                                kept.get(rank)
                                                        .computeIfAbsent(
                                                                key, k -> new ArrayList<>())
                                                        .add(copy);
                                            }
                                        }
                                    });
            List<List<Map<String, Float>>> results = onTwo(join, keeping);
            assertEquals(results.get(0), results.get(1)); // to the bit
            for (int epoch = 0; epoch < 3; epoch++) {
                expected.add(expected(kept, epoch));
                for (Map.Entry<String, Float> value : expected.get(epoch).entrySet()) {
                    float actual = results.get(0).get(epoch).get(value.getKey());
                    assertEquals(value.getValue(), actual, 1e-5f, epoch + " " + value.getKey());
                }
            }
        }
    }

    /** Evaluates the predictions of an epoch of both ranks, in one place. */
    private static Map<String, Float> expected(List<Map<String, List<NDList>>> kept, int epoch) {
        Map<String, Float> values = new TreeMap<>();
        Map<String, String> accumulators =
                Map.of(
                        EvaluatorTrainingListener.TRAIN_EPOCH, "train_",
                        EvaluatorTrainingListener.VALIDATE_EPOCH, "validate_");
        for (Evaluator evaluator :
                List.of(new F1(), new Accuracy(), new MaxError(), new OwnLoss())) {
            accumulators.forEach(
                    (key, prefix) -> {
                        evaluator.addAccumulator(key);
                        for (int rank = 0; rank < 2; rank++) {
                            List<NDList> lists = kept.get(rank).get(key);
                            int batches = lists.size() / 2 / 3; // in an epoch
                            IntStream.range(epoch * batches, (epoch + 1) * batches)
                                    .forEach(
                                            i ->
                                                    evaluator.updateAccumulator(
                                                            key,
                                                            lists.get(2 * i),
                                                            lists.get(2 * i + 1)));
                        }
                        String name = evaluator instanceof OwnLoss ? "loss" : evaluator.getName();
                        values.put(prefix + name, evaluator.getAccumulator(key));
                    });
        }
        return values;
    }

    /** Evaluations without an end of the epoch must not fill the heap. */
    @Test
    void keptPredictionsHaveALimit() {
        List<ProcessGroup> groups = ProcessGroups.local(2);
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        JobEvaluators evaluators = new JobEvaluators(20_000);
                        TrainingListener evaluating =
                                new TrainingListenerAdapter() {
                                    @Override
                                    public void onValidationBatch(Trainer trainer, BatchData b) {
                                        evaluators.onValidationBatch(trainer, b);
                                    }

                                    @Override
                                    public void onEpoch(Trainer trainer) {
                                        if (trainer.getTrainingResult().getEpoch() == 2) {
                                            evaluateWithoutEnd(trainer);
                                        }
                                        evaluators.onEpoch(trainer);
                                    }
                                };
                        DataParallelConfig config =
                                new DataParallelConfig(new OwnLoss()).optProcessGroup(group);
                        Extra extra = rank -> List.of(evaluating);
                        return fit(config, P2pEngine.NAME, group.rank(), 2, extra); // no error
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    private static void evaluateWithoutEnd(Trainer trainer) {
        NDManager manager = trainer.getManager();
        IllegalStateException e =
                assertThrows(
                        IllegalStateException.class,
                        () -> {
                            for (int i = 0; i < 100; i++) {
                                EasyTrain.evaluateDataset(trainer, data(manager, 0, 16, 4));
                            }
                        });
        String text = e.getMessage();
        assertTrue(text.contains("[F1, MaxError") && text.contains("onEpoch"), text);
    }

    /** A listener of one process stops the job; a listener behind it still meets all processes. */
    @Test
    void earlyStopOfOneProcessStopsAll() {
        List<Integer> epochs = new ArrayList<>(List.of(0, 0));
        Extra stopping =
                rank -> {
                    TrainingListener stops =
                            new TrainingListenerAdapter() {
                                @Override
                                public void onEpoch(Trainer trainer) {
                                    int epoch = trainer.getTrainingResult().getEpoch();
                                    epochs.set(rank, epoch);
                                    if (rank == 1 && epoch == 2) {
                                        throw new EarlyStoppedException(epoch, "out of time");
                                    }
                                }
                            };
                    TrainingListener meets =
                            new TrainingListenerAdapter() {
                                @Override
                                public void onEpoch(Trainer trainer) {
                                    ((DataParallelTrainer) trainer).group().barrier().await();
                                }
                            };
                    TrainingListener onlyHere = new TrainingListenerAdapter() {};
                    return rank == 0 ? List.of(onlyHere, stops, meets) : List.of(stops, meets);
                };
        List<ProcessGroup> groups = ProcessGroups.local(2);
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        DataParallelConfig config =
                                new DataParallelConfig(new OwnLoss())
                                        .optJoin(true)
                                        .optProcessGroup(group);
                        EarlyStoppedException e =
                                assertThrows(
                                        EarlyStoppedException.class,
                                        () ->
                                                fit(
                                                        config,
                                                        P2pEngine.NAME,
                                                        group.rank(),
                                                        2,
                                                        stopping));
                        assertEquals(2, e.getStopEpoch());
                        assertTrue(
                                e.getMessage()
                                        .contains(group.rank() == 1 ? "time" : "another process"),
                                e.getMessage());
                        return null;
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
        assertEquals(List.of(2, 2), epochs);
    }
}
