// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.pytorch.engine.PtNDArray;
import ai.djl.pytorch.jni.JniUtils;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.initializer.Initializer;
import ai.djl.training.optimizer.Optimizer;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.collectives.engine.P2pEngine;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.collectives.internal.shm.ShmBackendFactory;
import org.djlx.collectives.spi.Backend;
import org.djlx.collectives.spi.BackendFactory;
import org.djlx.collectives.spi.Backends;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.spi.Operation;
import org.djlx.collectives.spi.Support;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.TensorHold;
import org.djlx.nativeops.torch.Torch;
import org.djlx.training.precision.GradScaler;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** What becomes of gradients between passes and steps, whatever a program does in between. */
class GradientsOfStepsTest {

    private static final int ROWS = 6; // of a batch, of ones

    /** Goes forward and back with a trainer. */
    private static final class Passes {

        private final Trainer trainer;
        private final NDList input;

        Passes(Trainer trainer, DataType type) {
            this.trainer = trainer;
            NDArray ones = trainer.getManager().ones(new Shape(ROWS, 6));
            input = new NDList(ones.toType(type, true));
        }

        void pass() {
            try (GradientCollector collector = trainer.newGradientCollector()) {
                collector.backward(trainer.forward(input).head().sum());
            }
        }

        /** Goes forward through this trainer and another one, and back. */
        void passThrough(Trainer other) {
            try (GradientCollector collector = trainer.newGradientCollector()) {
                collector.backward(other.forward(trainer.forward(input)).head().sum());
            }
        }

        void passAndStep() {
            pass();
            trainer.step();
        }
    }

    private interface Body {
        void run(Passes passes, SequentialBlock block);
    }

    private static void train(
            int ranks, SequentialBlock block, Optimizer optimizer, DataType type, Body body) {
        DataParallelConfig config = new DataParallelConfig(Training.loss());
        config.optRanks(ranks).optBucketBytes(1).optOptimizer(optimizer);
        train(config, block, type, body);
    }

    private static void train(
            DataParallelConfig config, SequentialBlock block, DataType type, Body body) {
        block.setInitializer(Initializer.ONES, Parameter.Type.WEIGHT);
        try (Model model = Model.newInstance("model", P2pEngine.NAME)) {
            model.setBlock(block);
            model.setDataType(type);
            try (Trainer trainer = model.newTrainer(config)) {
                trainer.initialize(new Shape(1, 6));
                body.run(new Passes(trainer, type), block);
            }
        }
    }

    private static void train(int ranks, Body body) {
        train(ranks, Training.block(), Training.optimizer("sgd"), DataType.FLOAT32, body);
    }

    private static Parameter bias(SequentialBlock block) {
        return block.getChildren().valueAt(2).getParameters().valueAt(1);
    }

    private static float first(Parameter parameter) {
        return NoGradient.get(() -> parameter.getArray().toFloatArray()[0]);
    }

    /**
     * A collector of one trainer goes twice through another trainer's block, as in a GAN, before or
     * after a pass of the other's own collector. The bias' gradient is 1 for each row of each pass.
     */
    @ParameterizedTest
    @CsvSource({
        "1, 1, false",
        "2, 1, false",
        "2, 1, true",
        "3, 1, true",
        "2, 100000, false",
        "2, 100000, true",
        "3, 100000, true"
    })
    void anotherTrainersCollectorReducesGradients(int ranks, int bucketBytes, boolean own) {
        SequentialBlock first = new SequentialBlock().add(Linear.builder().setUnits(6).build());
        DataParallelConfig config = config(ranks, bucketBytes);
        train(
                config(ranks, bucketBytes),
                first,
                DataType.FLOAT32,
                (outer, ignored) ->
                        train(
                                config,
                                Training.block(),
                                DataType.FLOAT32,
                                (inner, block) -> {
                                    float before = first(bias(block));
                                    for (int step = 1; step <= 3; step++) {
                                        int passes = own && step > 1 ? 3 : 2;
                                        if (passes == 3) {
                                            inner.pass();
                                        }
                                        outer.passThrough(inner.trainer);
                                        outer.passThrough(inner.trainer);
                                        inner.trainer.step();
                                        before -= 0.05f * ROWS * passes;
                                        assertEquals(before, first(bias(block)), 1e-4f, "" + step);
                                    }
                                }));
    }

    /** A scope of the program reduces as a collector does: what it reads and halves is the sum. */
    @ParameterizedTest
    @CsvSource({"1, 1", "2, 1", "3, 1", "2, 100000", "3, 100000"})
    void changedGradientsReachAllRanksAfterAForeignScope(int ranks, int bucketBytes) {
        train(config(ranks, bucketBytes), Training.block(), DataType.FLOAT32, this::halve);
    }

    @Test
    void processesChangeGradientsAfterAForeignScope() {
        List<ProcessGroup> groups = ProcessGroups.local(2);
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        DataParallelConfig config = config(1, 1).optProcessGroup(group);
                        train(config, Training.block(), DataType.FLOAT32, this::halve);
                        return null;
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    /** Two scopes of two passes each; halves the gradients after each scope. */
    private void halve(Passes passes, SequentialBlock block) {
        Parameter bias = bias(block);
        for (int step = 1; step <= 3; step++) {
            float before = first(bias);
            for (float expected : new float[] {2 * ROWS, 3 * ROWS}) {
                try (GradientScope scope = GradientScope.open()) {
                    NDArray one = passes.trainer.forward(passes.input).head();
                    NDArray two = passes.trainer.forward(passes.input).head();
                    scope.backward(one.sum().add(two.sum()));
                }
                try (NDArray gradient = bias.getArray().getGradient()) {
                    assertEquals(expected, NoGradient.get(() -> gradient.toFloatArray()[0]), 1e-4f);
                    NoGradient.run(() -> gradient.muli(0.5f));
                }
            }
            passes.trainer.step();
            assertEquals(before - 0.05f * 1.5f * ROWS, first(bias), 1e-5f, "step " + step);
        }
    }

    /** What would lose the gradients of a pass, or mix them with others, is an error. */
    @ParameterizedTest
    @ValueSource(ints = {1, 2})
    void backwardOfAForeignScopeFailsAfterZeroGradients(int ranks) {
        List<ProcessGroup> groups = ProcessGroups.local(1);
        DataParallelConfig config = config(ranks, 1);
        if (ranks == 1) {
            config.optProcessGroup(groups.get(0));
        }
        try {
            train(
                    config,
                    Training.block(),
                    DataType.FLOAT32,
                    (passes, block) -> {
                        try (GradientScope scope = GradientScope.open()) {
                            NDArray y = passes.trainer.forward(passes.input).head().sum();
                            ((DataParallelTrainer) passes.trainer).zeroGradients();
                            assertThrows(IllegalStateException.class, () -> scope.backward(y));
                        }
                        ((DataParallelTrainer) passes.trainer).zeroGradients();
                        float before = first(bias(block));
                        passes.passAndStep();
                        assertEquals(before - 0.05f * ROWS, first(bias(block)), 1e-5f);
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    /** Another scope does not multiply the loss by the scale by which the step divides. */
    @ParameterizedTest
    @ValueSource(ints = {1, 2})
    void forwardRejectsAForeignScopeWithAGradScaler(int ranks) {
        train(
                config(ranks, 1).optGradScaler(new GradScaler()),
                Training.block(),
                DataType.FLOAT32,
                (passes, block) -> {
                    try (GradientScope scope = GradientScope.open()) {
                        Executable pass =
                                () -> scope.backward(passes.trainer.forward(passes.input).head());
                        String message =
                                assertThrows(IllegalStateException.class, pass).getMessage();
                        assertTrue(message.contains("GradScaler"), message);
                    }
                    passes.passAndStep();
                });
    }

    private static DataParallelConfig config(int ranks, int bucketBytes) {
        DataParallelConfig config = new DataParallelConfig(Training.loss());
        config.optRanks(ranks).optBucketBytes(bucketBytes);
        config.optOptimizer(Training.optimizer("sgd"));
        return config;
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 2, 3})
    void freezingBetweenBackwardAndStepDropsGradients(int ranks) {
        train(
                ranks,
                (passes, block) -> {
                    passes.passAndStep();
                    Parameter bias = bias(block);
                    passes.pass();
                    bias.freeze(true);
                    passes.trainer.step();
                    float before = first(bias);
                    passes.passAndStep();
                    assertEquals(before, first(bias));
                    bias.freeze(false);
                    passes.passAndStep();
                    // Gradients of passes while it was frozen, and before, are forgotten.
                    assertEquals(before - 0.05f * ROWS, first(bias), 1e-5f);
                });
    }

    /** A small model, whose ranks' gradients are added in the step. */
    @Test
    void freezingBetweenAccumulationAndStepDropsGradients() {
        train(
                config(2, 1 << 20),
                Training.block(),
                DataType.FLOAT32,
                (passes, block) -> {
                    Parameter bias = bias(block);
                    float before = first(bias);
                    DataParallelTrainer.NoSync accumulating =
                            ((DataParallelTrainer) passes.trainer).noSync();
                    passes.pass();
                    passes.pass();
                    bias.freeze(true);
                    passes.trainer.step();
                    accumulating.close();
                    assertEquals(before, first(bias));
                    bias.freeze(false);
                    passes.passAndStep();
                    assertEquals(before - 0.05f * ROWS, first(bias), 1e-5f);
                });
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 2, 3})
    void freezingBetweenTwoPassesKeepsTheWeights(int ranks) {
        train(
                ranks,
                (passes, block) -> {
                    passes.pass();
                    bias(block).freeze(true);
                    passes.passAndStep();
                    passes.passAndStep();
                });
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 2})
    void unfreezingBetweenBackwardAndStepTrainsLater(int ranks) {
        train(
                ranks,
                (passes, block) -> {
                    Parameter bias = bias(block);
                    bias.freeze(true);
                    passes.passAndStep();
                    passes.pass();
                    bias.freeze(false);
                    passes.trainer.step();
                    float before = first(bias);
                    passes.passAndStep();
                    assertEquals(before - 0.05f * ROWS, first(bias), 1e-5f);
                });
    }

    /** Both have one array, and so one gradient, which is the sum. */
    @ParameterizedTest
    @ValueSource(ints = {1, 2})
    void parametersThatShareAnArrayTrainAsOnOneDevice(int ranks) {
        Linear one = Linear.builder().setUnits(6).optBias(false).build();
        Linear two = Linear.builder().setUnits(6).optBias(false).build();
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            NDArray array = manager.ones(new Shape(6, 6));
            one.getParameters().valueAt(0).setArray(array);
            two.getParameters().valueAt(0).setArray(array);
            train(
                    ranks,
                    new SequentialBlock().add(one).add(two),
                    Training.optimizer("sgd"),
                    DataType.FLOAT32,
                    (passes, block) -> {
                        // Through either layer 36 for each row: 6 x 6 ones.
                        float step = 0.05f * ROWS * (6 + 6);
                        passes.passAndStep();
                        assertEquals(1 - step, first(one.getParameters().valueAt(0)), 1e-4f);
                        assertEquals(1 - step, first(two.getParameters().valueAt(0)), 1e-4f);
                    });
        }
    }

    @Test
    void heldGradientsAreZeroAfterTheStep() {
        train(
                2,
                (passes, block) -> {
                    NDArray bias = bias(block).getArray();
                    passes.pass();
                    try (NDArray held = bias.getGradient()) {
                        passes.trainer.step();
                        assertArrayEquals(new float[(int) held.size()], held.toFloatArray());
                        passes.pass();
                        try (NDArray now = bias.getGradient()) {
                            assertArrayEquals(now.toFloatArray(), held.toFloatArray());
                        }
                    }
                });
    }

    /** Works by {@code shm}, and holds what it reduces on, as it is held until a GPU has ended. */
    private static final class Holding extends Backend {

        private final List<TensorHold> holds;
        private final Backend shm;

        Holding(GroupContext context, List<TensorHold> holds) {
            this.holds = holds;
            shm = new ShmBackendFactory().create(context);
        }

        @Override
        public String name() {
            return "holding";
        }

        @Override
        public Support support() {
            return shm.support();
        }

        @Override
        public Device device() {
            return shm.device();
        }

        @Override
        public Work allReduce(Operation operation, NDArray tensor, ReduceOp op) {
            holds.add(new TensorHold(tensor));
            return shm.allReduce(operation, tensor, op);
        }

        @Override
        public Work allGather(Operation operation, List<NDArray> outputs, NDArray input) {
            return shm.allGather(operation, outputs, input);
        }

        @Override
        public void close() {
            shm.close();
        }
    }

    private record HoldingFactory(List<TensorHold> holds) implements BackendFactory {

        @Override
        public String name() {
            return "holding";
        }

        @Override
        public Support support() {
            return new ShmBackendFactory().support();
        }

        @Override
        public Backend create(GroupContext context) {
            return new Holding(context, holds);
        }
    }

    /** As on a GPU, where the host goes on before an all-reduce has ended. */
    @Test
    void reductionDoesNotCountAsAHolderOfGradients() {
        List<TensorHold> holds = Collections.synchronizedList(new ArrayList<>());
        Backends.register("holding", new HoldingFactory(holds));
        DataParallelConfig config = new DataParallelConfig(Training.loss());
        config.optRanks(2).optBackend("holding").optOptimizer(Training.optimizer("sgd"));
        train(
                config,
                Training.block(),
                DataType.FLOAT32,
                (passes, block) -> {
                    NDArray bias = bias(block).getArray();
                    passes.pass();
                    assertEquals(0, Torch.gradientHolders(bias));
                    try (NDArray held = bias.getGradient()) {
                        passes.trainer.step();
                        assertEquals(1, Torch.gradientHolders(bias), "the program's");
                        assertArrayEquals(new float[(int) held.size()], held.toFloatArray());
                    }
                    passes.passAndStep();
                    // DJL's getGradient() would show zeros.
                    assertNull(JniUtils.getGradient((PtNDArray) bias), "it has been given up");
                });
        holds.forEach(TensorHold::close);
    }

    @Test
    void gradientsKeepTheirElementType() {
        train(
                1,
                Training.block(),
                Training.optimizer("sgd"),
                DataType.FLOAT64,
                (passes, block) -> {
                    NDArray bias = bias(block).getArray();
                    passes.passAndStep();
                    try (NDArray gradient = bias.getGradient()) {
                        assertEquals(DataType.FLOAT64, gradient.getDataType());
                    }
                });
    }
}
