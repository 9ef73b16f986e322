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
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.core.Linear;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.training.ParameterStore;
import ai.djl.training.Trainer;
import ai.djl.util.PairList;
import java.util.ArrayList;
import java.util.List;
import org.djlx.collectives.engine.P2pEngine;
import org.djlx.training.strategy.ShardingStrategy;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** {@code trainer.evaluate} of several ranks, with arrays that have as many rows by chance. */
@Timeout(120)
class EvaluationTest {

    private static final int FEATURES = 5;

    /** Adds the mean of a table to the data; predicts rows of the table, too. */
    private static class Net extends AbstractBlock {

        private final Block head = addChildBlock("head", Linear.builder().setUnits(3).build());

        @Override
        protected NDList forwardInternal(
                ParameterStore store,
                NDList in,
                boolean training,
                PairList<String, Object> params) {
            NDArray x = in.get(0).add(in.get(1).mean(new int[] {0}));
            NDArray table = head.forward(store, new NDList(in.get(1).get("0:3")), training).head();
            NDArray y = head.forward(store, new NDList(x), training).head();
            // In evaluation the last prediction has the batch.
            return new NDList(y, table, training ? y.mean() : y.sum(new int[] {1}));
        }

        @Override
        public Shape[] getOutputShapes(Shape[] inputs) {
            return inputs;
        }

        @Override
        protected void initializeChildBlocks(NDManager manager, DataType type, Shape... inputs) {
            head.initialize(manager, type, new Shape(1, FEATURES));
        }
    }

    private interface Body {
        void run(Trainer trainer);
    }

    private static void train(Block block, int ranks, ShardingStrategy strategy, Body body) {
        DefaultTrainingConfig config =
                ranks == 0
                        ? new DefaultTrainingConfig(Training.loss())
                        : new DataParallelConfig(Training.loss())
                                .optRanks(ranks)
                                .optShardingStrategy(strategy);
        config.optOptimizer(Training.optimizer("sgd"));
        block.setInitializer(Training.weights(5), Parameter.Type.WEIGHT);
        try (Model model = Model.newInstance("model", ranks == 0 ? "PyTorch" : P2pEngine.NAME)) {
            model.setBlock(block);
            try (Trainer trainer = model.newTrainer(config)) {
                trainer.initialize(new Shape(1, FEATURES), new Shape(FEATURES, FEATURES));
                body.run(trainer);
            }
        }
    }

    private static NDArray sines(NDManager manager, int rows) {
        return manager.arange(rows * FEATURES).mul(0.7f).sin().reshape(rows, FEATURES);
    }

    private static NDList batch(Trainer trainer, int rows) {
        NDManager manager = trainer.getManager();
        return new NDList(sines(manager, rows), sines(manager, FEATURES).cos());
    }

    private static void evaluate(Trainer trainer, int rows, List<float[]> values) {
        trainer.evaluate(batch(trainer, rows)).forEach(array -> values.add(array.toFloatArray()));
    }

    private static void step(Trainer trainer, int rows, List<float[]> values) {
        try (GradientCollector collector = trainer.newGradientCollector()) {
            NDList y = trainer.forward(batch(trainer, rows));
            y.forEach(array -> values.add(array.toFloatArray()));
            collector.backward(y.get(0).square().mean().add(y.get(2)));
        }
        trainer.step();
    }

    @ParameterizedTest
    @CsvSource({
        "2, false, NO_SHARD",
        "2, true, NO_SHARD",
        "3, false, NO_SHARD",
        "4, true, NO_SHARD",
        "2, false, FULL_SHARD",
        "3, true, FULL_SHARD"
    })
    void evaluationsEqualOneDevice(int ranks, boolean before, ShardingStrategy strategy) {
        List<List<float[]>> values = new ArrayList<>();
        for (int own : new int[] {0, ranks}) {
            List<float[]> of = new ArrayList<>();
            train(
                    new Net(),
                    own,
                    strategy,
                    trainer -> {
                        if (before) {
                            for (int rows : new int[] {1, 8, 5}) {
                                evaluate(trainer, rows, of);
                            }
                        }
                        step(trainer, before ? 5 : 8, of);
                        for (int rows : new int[] {5, 6, 8, 3, 2, 1}) {
                            evaluate(trainer, rows, of);
                        }
                        step(trainer, 5, of);
                        evaluate(trainer, 7, of);
                    });
            values.add(of);
        }
        assertEquals(values.get(0).size(), values.get(1).size());
        for (int i = 0; i < values.get(0).size(); i++) {
            assertArrayEquals(values.get(0).get(i), values.get(1).get(i), 1e-5f, "array " + i);
        }
    }

    @Test
    void evaluateRejectsABlockThatMixesRows() {
        train(
                new Net(),
                2,
                ShardingStrategy.NO_SHARD,
                trainer -> {
                    IllegalArgumentException e =
                            assertThrows(
                                    IllegalArgumentException.class,
                                    () -> evaluate(trainer, FEATURES, new ArrayList<>()));
                    assertTrue(e.getMessage().contains("another size"), e.getMessage());
                    evaluate(trainer, 8, new ArrayList<>());
                    evaluate(trainer, FEATURES, new ArrayList<>());
                });
    }

    @Test
    void evaluateRejectsRandomPredictions() {
        Block random =
                new Net() {
                    @Override
                    protected NDList forwardInternal(
                            ParameterStore store,
                            NDList in,
                            boolean training,
                            PairList<String, Object> params) {
                        NDArray x = in.head();
                        NDArray noise = x.getManager().randomNormal(x.getShape());
                        NDList noisy = new NDList(x.add(noise), in.get(1));
                        return super.forwardInternal(store, noisy, training, params);
                    }
                };
        train(
                random,
                2,
                ShardingStrategy.NO_SHARD,
                trainer -> {
                    IllegalArgumentException e =
                            assertThrows(
                                    IllegalArgumentException.class,
                                    () -> evaluate(trainer, 8, new ArrayList<>()));
                    assertTrue(e.getMessage().contains("random numbers"), e.getMessage());
                });
    }
}
