// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Block;
import ai.djl.nn.LambdaBlock;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.nn.recurrent.GRU;
import ai.djl.nn.recurrent.LSTM;
import ai.djl.nn.recurrent.RNN;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.training.ParameterStore;
import ai.djl.training.Trainer;
import ai.djl.util.PairList;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Supplier;
import org.djlx.collectives.engine.P2pEngine;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.training.precision.ActivationCheckpoint;
import org.djlx.training.strategy.ShardingStrategy;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Blocks that change the list, or the arrays, that they are given. */
@Timeout(120)
class ChangingBlockTest {

    private interface Batches {
        NDList of(NDManager manager, int rows);
    }

    /**
     * Trains on batches of 8, 5, 2 and 1 rows; returns predictions, data after each, parameters.
     */
    private static List<float[]> train(
            Supplier<Block> blocks, int ranks, ShardingStrategy strategy, Batches batches) {
        List<float[]> values = new ArrayList<>();
        DefaultTrainingConfig config =
                ranks == 0
                        ? new DefaultTrainingConfig(Training.loss())
                        : new DataParallelConfig(Training.loss())
                                .optRanks(ranks)
                                .optShardingStrategy(strategy);
        config.optOptimizer(Training.optimizer("sgd"));
        try (Model model = Model.newInstance("changing", ranks == 0 ? "PyTorch" : P2pEngine.NAME)) {
            Block block = blocks.get();
            block.setInitializer(Training.weights(5), Parameter.Type.WEIGHT);
            model.setBlock(block);
            try (Trainer trainer = model.newTrainer(config)) {
                NDList example = batches.of(trainer.getManager(), 1);
                trainer.initialize(example.getShapes());
                for (int rows : new int[] {8, 5, 2, 1}) {
                    NDList data = batches.of(trainer.getManager(), rows);
                    try (GradientCollector collector = trainer.newGradientCollector()) {
                        NDArray y = trainer.forward(new NDList(data)).head();
                        collector.backward(y.square().sum());
                        values.add(y.toFloatArray());
                    }
                    trainer.step();
                    data.forEach(array -> values.add(array.toFloatArray()));
                    data = batches.of(trainer.getManager(), rows);
                    NDArray y = trainer.evaluate(new NDList(data)).head();
                    values.add(y.toFloatArray());
                    data.forEach(array -> values.add(array.toFloatArray()));
                }
            }
            NoGradient.run(
                    () ->
                            block.getParameters()
                                    .values()
                                    .forEach(each -> values.add(each.getArray().toFloatArray())));
        }
        return values;
    }

    private static void assertSame(List<float[]> expected, List<float[]> actual) {
        assertEquals(expected.size(), actual.size());
        for (int i = 0; i < expected.size(); i++) {
            assertArrayEquals(expected.get(i), actual.get(i), 2e-5f, "array " + i);
        }
    }

    private static NDArray sines(NDManager manager, long... shape) {
        Shape of = new Shape(shape);
        return manager.arange((int) of.size()).mul(0.7f).sin().reshape(of);
    }

    private static Block recurrent(String kind) {
        return switch (kind) {
            case "GRU" -> GRU.builder().setStateSize(3).setNumLayers(1).optBatchFirst(true).build();
            case "RNN" ->
                    RNN.builder()
                            .setStateSize(3)
                            .setNumLayers(1)
                            .setActivation(RNN.Activation.TANH)
                            .optBatchFirst(true)
                            .build();
            default ->
                    LSTM.builder()
                            .setStateSize(3)
                            .setNumLayers(1)
                            .optBatchFirst(true)
                            .optReturnState(true)
                            .build();
        };
    }

    /** DJL's layers append their zero state to the batch's list. */
    @ParameterizedTest
    @CsvSource({
        "GRU, root, 1",
        "GRU, root, 2",
        "GRU, first, 3",
        "RNN, root, 2",
        "RNN, checkpoint, 2",
        "RNN, sharded, 2",
        "LSTM, first, 2",
        "LSTM, checkpoint, 3",
        "LSTM, sharded, 2",
    })
    void recurrentLayersTrainAsOnOneDevice(String kind, String place, int ranks) {
        Supplier<Block> block =
                () -> {
                    Block layer = recurrent(kind);
                    return switch (place) {
                        case "root" -> layer;
                        case "checkpoint" ->
                                new SequentialBlock()
                                        .add(ActivationCheckpoint.wrap(layer))
                                        .add(new LambdaBlock(list -> new NDList(list.head())));
                        default ->
                                new SequentialBlock()
                                        .add(layer)
                                        .add(new LambdaBlock(list -> new NDList(list.head())))
                                        .add(Linear.builder().setUnits(2).build());
                    };
                };
        Batches batches = (manager, rows) -> new NDList(sines(manager, rows, 4, 2));
        List<float[]> expected =
                train(
                        () -> place.equals("checkpoint") ? unwrapped(kind) : block.get(),
                        0,
                        null,
                        batches);
        ShardingStrategy strategy =
                place.equals("sharded") ? ShardingStrategy.FULL_SHARD : ShardingStrategy.NO_SHARD;
        assertSame(expected, train(block, ranks, strategy, batches));
    }

    private static Block unwrapped(String kind) {
        return new SequentialBlock()
                .add(recurrent(kind))
                .add(new LambdaBlock(list -> new NDList(list.head())));
    }

    /** Scales its data, and a mask without the batch, in place: once in each pass. */
    private static final class InPlace extends AbstractBlock {

        private final Block linear = addChildBlock("linear", Linear.builder().setUnits(2).build());

        @Override
        protected NDList forwardInternal(
                ParameterStore store,
                NDList inputs,
                boolean training,
                PairList<String, Object> params) {
            NDArray x = inputs.remove(0);
            NDArray mask = inputs.remove(0);
            NoGradient.run(
                    () -> {
                        x.muli(0.5f);
                        mask.addi(1);
                    });
            return linear.forward(store, new NDList(x.mul(mask)), training, params);
        }

        @Override
        public Shape[] getOutputShapes(Shape[] inputs) {
            return linear.getOutputShapes(new Shape[] {inputs[0]});
        }

        @Override
        protected void initializeChildBlocks(NDManager manager, DataType type, Shape... inputs) {
            linear.initialize(manager, type, inputs[0]);
        }
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 2, 3})
    void blocksThatChangeTheirInputSeeACopy(int ranks) {
        Batches batches =
                (manager, rows) ->
                        new NDList(sines(manager, rows, 6), manager.ones(new Shape(1, 6)));
        List<float[]> expected = train(InPlace::new, 0, null, batches);
        assertSame(expected, train(InPlace::new, ranks, ShardingStrategy.NO_SHARD, batches));
    }
}
