// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples;

import static org.junit.jupiter.api.Assertions.assertEquals;

import ai.djl.Device;
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
import ai.djl.training.GradientCollector;
import ai.djl.training.ParameterStore;
import ai.djl.training.initializer.Initializer;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;
import ai.djl.util.PairList;
import java.nio.file.Path;
import java.util.List;
import java.util.function.UnaryOperator;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.training.DataParallelConfig;
import org.djlx.training.DataParallelTrainer;
import org.djlx.training.GradientReduction;
import org.djlx.training.checkpoint.CheckpointManager;
import org.djlx.training.checkpoint.TrainingProgress;
import org.djlx.training.precision.MixedPrecisionPolicy;
import org.djlx.training.strategy.FullyShard;
import org.djlx.training.strategy.FullyShardPolicy;
import org.djlx.training.strategy.GradientCompression;
import org.djlx.training.strategy.PowerSgd;
import org.djlx.training.strategy.ShardingStrategy;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/**
 * Training ported from PyTorch by the tables of docs/training.md gives PyTorch's weights on two
 * ranks. The weights are computed by hand.
 */
@Timeout(120)
@SuppressWarnings("try") // a NoSync is not used in its body
class TorchTrainingTest {

    private static void onTwoRanks(ProcessGroups.RankBody<Void> body) {
        List<ProcessGroup> groups = ProcessGroups.local(2);
        try {
            ProcessGroups.run(groups, body);
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    /** Two layers of one weight each, as a user writes a block. */
    private static final class Twice extends AbstractBlock {
        private Block first = addChildBlock("first", linear());
        private Block second = addChildBlock("second", linear());

        @Override
        protected NDList forwardInternal(
                ParameterStore store, NDList x, boolean training, PairList<String, Object> params) {
            return second.forward(store, first.forward(store, x, training), training);
        }

        @Override
        protected void initializeChildBlocks(NDManager manager, DataType type, Shape... shapes) {
            first.initialize(manager, type, shapes);
            second.initialize(manager, type, first.getOutputShapes(shapes));
        }

        @Override
        public Shape[] getOutputShapes(Shape[] shapes) {
            return second.getOutputShapes(first.getOutputShapes(shapes));
        }
    }

    private static Block linear() {
        return Linear.builder().setUnits(1).optBias(false).build();
    }

    private interface Steps {
        void run(DataParallelTrainer trainer) throws Exception;
    }

    /** Trains a block, whose weights begin at 1, by SGD with rate 0.1; checks the weights. */
    private static void train(
            ProcessGroup group,
            Block block,
            UnaryOperator<DataParallelConfig> options,
            Steps steps,
            double expected)
            throws Exception {
        try (Model model = Model.newInstance("model", group.device(), "PyTorch-P2P")) {
            model.setBlock(block);
            DataParallelConfig config =
                    options.apply(new DataParallelConfig(Loss.l2Loss()).optProcessGroup(group));
            Tracker rate = Tracker.fixed(0.1f);
            config.optDevices(new Device[] {group.device()})
                    .optInitializer(Initializer.ONES, Parameter.Type.WEIGHT)
                    .optOptimizer(Optimizer.sgd().setLearningRateTracker(rate).build());
            try (DataParallelTrainer trainer = (DataParallelTrainer) model.newTrainer(config)) {
                trainer.initialize(new Shape(1, 1));
                steps.run(trainer);
            }
            for (Parameter weight : block.getParameters().values()) {
                assertEquals(expected, weight.getArray().getFloat(), 1e-6);
            }
        }
    }

    /** A row x = rank + 1 with label 0: with one weight w the loss is (w x)² / 2. */
    private static void backward(DataParallelTrainer trainer) {
        try (NDManager manager = trainer.getManager().newSubManager();
                GradientCollector collector = trainer.newGradientCollector()) {
            NDArray x = manager.create(new float[] {trainer.process() + 1}, new Shape(1, 1));
            NDList predictions = trainer.forward(new NDList(x));
            NDList labels = new NDList(x.zerosLike());
            collector.backward(trainer.getLoss().evaluate(labels, predictions));
        }
    }

    private static void step(DataParallelTrainer trainer) {
        backward(trainer);
        trainer.step();
    }

    @Test
    void dataParallelWeightsAreThoseOfTorch() {
        onTwoRanks(TorchTrainingTest::trainDataParallel);
    }

    private static Void trainDataParallel(ProcessGroup group) throws Exception {
        // The ranks' gradients w x² are 1 and 4: their mean is 2.5, their sum 5.
        UnaryOperator<DataParallelConfig> sum = c -> c.optGradientReduction(GradientReduction.SUM);
        UnaryOperator<DataParallelConfig> halves =
                c -> c.optGradientHook(GradientCompression.BFLOAT16);
        Steps step = TorchTrainingTest::step;
        train(group, linear(), c -> c, step, 0.75);
        train(group, linear(), sum, step, 0.5);
        train(group, linear(), halves, step, 0.75);
        train(group, linear(), c -> c.optGradientHook(new PowerSgd(1, 0)), step, 0.75);
        Steps accumulated =
                trainer -> {
                    try (DataParallelTrainer.NoSync noSync = trainer.noSync()) {
                        backward(trainer);
                    }
                    step(trainer);
                };
        train(group, linear(), c -> c, accumulated, 0.5);
        Steps uneven =
                trainer -> {
                    step(trainer);
                    if (group.rank() == 0) {
                        step(trainer); // the mean of 0.75 and 0
                    }
                    trainer.join();
                };
        train(group, linear(), c -> c.optJoin(true), uneven, 0.7125);
        return null;
    }

    @Test
    void fullyShardedWeightsAreThoseOfTorch(@TempDir Path directory) {
        onTwoRanks(group -> trainFullySharded(group, directory));
    }

    private static Void trainFullySharded(ProcessGroup group, Path directory) throws Exception {
        FullyShardPolicy policy =
                new FullyShardPolicy()
                        .optReshardAfterForward(false)
                        .optParameterType(ScalarType.BFLOAT16)
                        .optReductionType(ScalarType.FLOAT32)
                        .optOutputType(ScalarType.FLOAT32);
        UnaryOperator<DataParallelConfig> sharded =
                config ->
                        config.optShardingStrategy(ShardingStrategy.FULL_SHARD)
                                .optMixedPrecision(MixedPrecisionPolicy.BFLOAT16);
        CheckpointManager checkpoints = CheckpointManager.builder().setDirectory(directory).build();
        TrainingProgress progress = new TrainingProgress(1, 0, 1);
        double norm = 2.5 * Math.sqrt(2); // the gradient of each weight is 2.5
        Steps clipped =
                trainer -> {
                    backward(trainer);
                    assertEquals(norm, trainer.clipGradNorm(norm / 2), 1e-6);
                    trainer.step();
                    checkpoints.save(trainer, progress);
                };
        Block units = FullyShard.apply(new Twice(), each -> each instanceof Linear, policy);
        train(group, units, sharded, clipped, 0.875);
        Steps restored = trainer -> assertEquals(progress, checkpoints.restore(trainer));
        train(group, new Twice(), c -> c, restored, 0.875);
        return null;
    }
}
