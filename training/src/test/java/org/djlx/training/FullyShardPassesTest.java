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
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.training.GradientCollector;
import ai.djl.training.ParameterStore;
import ai.djl.training.initializer.Initializer;
import ai.djl.util.PairList;
import java.util.ArrayList;
import java.util.List;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.engine.P2pEngine;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.training.strategy.FullyShard;
import org.djlx.training.strategy.FullyShardPolicy;
import org.djlx.training.strategy.ShardingStrategy;
import org.junit.jupiter.api.Test;

/** What may happen between the passes of fully sharded blocks. */
class FullyShardPassesTest {

    /** Keeps its output, counts its passes in a buffer, and fails once if told to. */
    private static final class Stateful extends AbstractBlock {

        private final Parameter passes =
                addParameter(
                        Parameter.builder()
                                .setName("passes")
                                .setType(Parameter.Type.OTHER)
                                .optShape(new Shape(1))
                                .optInitializer(Initializer.ZEROS)
                                .optRequiresGrad(false)
                                .build());
        private final Block linear =
                addChildBlock("linear", Linear.builder().setUnits(Training.FEATURES).build());
        private NDArray kept;
        private boolean fails;

        @Override
        protected NDList forwardInternal(
                ParameterStore store,
                NDList inputs,
                boolean training,
                PairList<String, Object> params) {
            NDArray x = inputs.head();
            NoGradient.run(() -> store.getValue(passes, x.getDevice(), training).addi(1));
            NDList outputs = linear.forward(store, inputs, training);
            if (fails) {
                fails = false;
                throw new IllegalStateException("planned");
            }
            kept = outputs.head();
            return outputs;
        }

        @Override
        public Shape[] getOutputShapes(Shape[] inputShapes) {
            return inputShapes;
        }

        @Override
        protected void initializeChildBlocks(NDManager manager, DataType type, Shape... shapes) {
            linear.initialize(manager, type, shapes);
        }
    }

    private interface Use {
        void run(DataParallelTrainer trainer, Stateful first, NDManager manager);

        /** Runs when the trainer is closed. */
        default void check(Stateful first) {}
    }

    /** Trains three layers on two ranks, each with a trainer of its own. */
    private static void onTwoTrainers(FullyShardPolicy policy, Use use) {
        List<ProcessGroup> groups = ProcessGroups.local(2);
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        Stateful first = new Stateful();
                        SequentialBlock block = new SequentialBlock().add(first);
                        block.add(new Stateful()).add(new Stateful());
                        block.setInitializer(Training.weights(5), Parameter.Type.WEIGHT);
                        try (Model model = Model.newInstance("stateful", P2pEngine.NAME)) {
                            model.setBlock(
                                    FullyShard.apply(
                                            block, each -> each instanceof Stateful, policy));
                            DataParallelConfig config =
                                    FullyShardTest.config(ShardingStrategy.FULL_SHARD, "sgd")
                                            .optProcessGroup(group)
                                            .optCheckForward(false);
                            try (DataParallelTrainer trainer =
                                            (DataParallelTrainer) model.newTrainer(config);
                                    NDManager manager = trainer.getManager().newSubManager()) {
                                trainer.initialize(new Shape(1, Training.FEATURES));
                                use.run(trainer, first, manager);
                            }
                            use.check(first);
                        }
                        return null;
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    private static NDArray loss(DataParallelTrainer trainer, NDManager manager, int seed) {
        NDList x = new NDList(FullyShardTest.batch(manager, seed, 0, 1));
        return trainer.forward(x).head().square().mean();
    }

    @Test
    void buffersThatABlockWritesAreWholeOnEachRank() {
        onTwoTrainers(
                new FullyShardPolicy(),
                new Use() {
                    @Override
                    public void run(
                            DataParallelTrainer trainer, Stateful first, NDManager manager) {
                        for (int pass = 0; pass < 3; pass++) {
                            try (GradientCollector collector = trainer.newGradientCollector()) {
                                collector.backward(loss(trainer, manager, pass));
                            }
                            trainer.step();
                        }
                    }

                    @Override
                    public void check(Stateful first) {
                        NDArray passes = first.passes.getArray();
                        assertEquals(3f, NoGradient.<Float>get(passes::getFloat));
                    }
                });
    }

    /** Autograd would run through the block before its parameters are gathered again. */
    @Test
    void aLossOfResultsThatABlockKeepsIsRefused() {
        onTwoTrainers(
                new FullyShardPolicy(),
                (trainer, first, manager) -> {
                    try (GradientCollector collector = trainer.newGradientCollector()) {
                        NDArray loss = loss(trainer, manager, 1).add(first.kept.mean());
                        IllegalStateException e =
                                assertThrows(
                                        IllegalStateException.class,
                                        () -> collector.backward(loss));
                        assertTrue(e.getMessage().contains("did not return"), e.getMessage());
                    }
                });
    }

    @Test
    void aStepBetweenForwardAndBackwardIsRefused() {
        onTwoTrainers(
                new FullyShardPolicy(),
                (trainer, first, manager) -> {
                    try (GradientCollector collector = trainer.newGradientCollector()) {
                        collector.backward(loss(trainer, manager, 1));
                        NDArray later = loss(trainer, manager, 2);
                        trainer.step();
                        IllegalStateException e =
                                assertThrows(
                                        IllegalStateException.class,
                                        () -> collector.backward(later));
                        assertTrue(e.getMessage().contains("discarded this pass"), e.getMessage());
                    }
                });
    }

    /** A failed pass leaves nothing in the gradients of the next one. */
    @Test
    void aPassAfterAFailedOneHasItsOwnGradients() {
        List<float[]> expected = new ArrayList<>();
        for (boolean fails : new boolean[] {false, true}) {
            onTwoTrainers(
                    new FullyShardPolicy(),
                    (trainer, first, manager) -> {
                        try (GradientCollector collector = trainer.newGradientCollector()) {
                            if (fails) {
                                first.fails = true;
                                assertThrows(
                                        IllegalStateException.class,
                                        () -> loss(trainer, manager, 1));
                            }
                            collector.backward(loss(trainer, manager, 2));
                        }
                        trainer.step();
                        DataParallelTrainer.FullParameters full = trainer.summonFullParameters();
                        List<float[]> linear = FullyShardTest.parameters(first.linear);
                        full.close();
                        synchronized (expected) {
                            if (expected.isEmpty()) {
                                expected.addAll(linear);
                            } else {
                                FullyShardTest.assertEqualArrays(expected, linear);
                            }
                        }
                    });
        }
    }

    /** Also while a pass keeps parameters that were gathered in another type. */
    @Test
    void summonedParametersHaveTheirOwnType() {
        FullyShardPolicy policy =
                new FullyShardPolicy()
                        .optReshardAfterForward(false)
                        .optParameterType(ScalarType.BFLOAT16);
        onTwoTrainers(
                policy,
                (trainer, first, manager) -> {
                    List<List<float[]>> all = new ArrayList<>();
                    for (boolean open : new boolean[] {false, true}) {
                        GradientCollector collector = trainer.newGradientCollector();
                        if (open) {
                            loss(trainer, manager, 1);
                        }
                        DataParallelTrainer.FullParameters full = trainer.summonFullParameters();
                        trainer.summonFullParameters().close(); // The first one keeps them.
                        all.add(FullyShardTest.parameters(first.linear));
                        full.close();
                        collector.close();
                    }
                    FullyShardTest.assertEqualArrays(all.get(0), all.get(1));
                });
    }
}
