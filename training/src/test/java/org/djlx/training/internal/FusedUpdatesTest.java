// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.internal;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.engine.EngineException;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;
import java.lang.reflect.Method;
import java.util.Collections;
import java.util.HashSet;
import java.util.Random;
import java.util.Set;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.nativeops.torch.NoGradient;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** What stands for a parameter, to DJL's optimizers; no GPU is needed. */
class FusedUpdatesTest {

    static Optimizer optimizer(String name) {
        Tracker falling = Tracker.factor().setBaseValue(0.1f).setFactor(0.7f).build();
        return switch (name) {
            case "sgd" -> Optimizer.sgd().setLearningRateTracker(falling).build();
            case "sgd with all" ->
                    Optimizer.sgd()
                            .setLearningRateTracker(falling)
                            .optWeightDecays(0.013f)
                            .optClipGrad(0.4f)
                            .setRescaleGrad(0.37f)
                            .build();
            case "momentum" ->
                    Optimizer.sgd()
                            .setLearningRateTracker(falling)
                            .optMomentum(0.9f)
                            .optWeightDecays(0.013f)
                            .build();
            case "adam" -> Optimizer.adam().optLearningRateTracker(falling).build();
            case "adam with all" ->
                    Optimizer.adam()
                            .optLearningRateTracker(falling)
                            .optBeta1(0.8f)
                            .optBeta2(0.95f)
                            .optEpsilon(1e-6f)
                            .optWeightDecays(0.013f)
                            .optClipGrad(0.4f)
                            .setRescaleGrad(0.37f)
                            .build();
            case "adamW" ->
                    Optimizer.adamW()
                            .optLearningRateTracker(falling)
                            .optWeightDecays(0.013f)
                            .build();
            default -> throw new IllegalArgumentException(name);
        };
    }

    static NDArray random(Random random, NDManager manager, Shape shape) {
        float[] values = new float[(int) shape.size()];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) random.nextGaussian();
        }
        return manager.create(values, shape);
    }

    /** They call the methods that kernels replace, and find all that they need. */
    @ParameterizedTest
    @ValueSource(strings = {"sgd", "sgd with all", "momentum", "adam", "adam with all", "adamW"})
    void optimizersUpdateThroughTheProxy(String name) {
        Random random = new Random(3);
        Set<Method> calls = new HashSet<>();
        try (NDManager manager = NDManager.newBaseManager(Device.cpu(), "PyTorch")) {
            Optimizer theirs = optimizer(name);
            Optimizer ours = optimizer(name);
            assertTrue(FusedUpdates.knows(ours));
            NDArray expected = random(random, manager, new Shape(3, 5));
            NDArray parameter = expected.duplicate();
            NDArray proxy =
                    FusedUpdates.proxy(
                            parameter,
                            (called, values) -> {
                                calls.add(called);
                                return false;
                            });
            for (int step = 0; step < 3; step++) {
                NDArray gradient = random(random, manager, new Shape(3, 5));
                theirs.update("p", expected, gradient);
                ours.update("p", proxy, gradient);
            }
            assertArrayEquals(expected.toFloatArray(), parameter.toFloatArray());
        }
        Method replaced = name.startsWith("adam") ? FusedUpdates.ADAM : FusedUpdates.SGD;
        assertEquals(Collections.singleton(replaced), calls);
    }

    /** A graph that has saved a parameter does not survive an update of it. */
    @Test
    void writtenIncrementsTheAutogradVersion() {
        try (NDManager manager = NDManager.newBaseManager(Device.cpu(), "PyTorch");
                GradientScope scope = GradientScope.open()) {
            NDArray parameter = manager.ones(new Shape(3, 5));
            parameter.setRequiresGradient(true);
            scope.backward(parameter.square().sum());
            NDArray loss = parameter.square().sum();
            NoGradient.run(() -> FusedUpdates.written(parameter));
            EngineException e = assertThrows(EngineException.class, () -> scope.backward(loss));
            assertTrue(e.getMessage().contains("inplace"), e::getMessage);
        }
    }

    /** What fails below fails as it does without. */
    @Test
    void proxyThrowsTheParametersExceptions() {
        try (NDManager manager = NDManager.newBaseManager(Device.cpu(), "PyTorch")) {
            NDArray parameter = manager.ones(new Shape(2));
            NDArray proxy = FusedUpdates.proxy(parameter, (called, values) -> false);
            RuntimeException expected =
                    assertThrows(RuntimeException.class, () -> parameter.reshape(3));
            RuntimeException actual = assertThrows(RuntimeException.class, () -> proxy.reshape(3));
            assertEquals(expected.getClass(), actual.getClass());
        }
    }

    /** An optimizer of the user's own gets the array itself. */
    @Test
    void subclassesOfOptimizersAreNotKnown() {
        Optimizer own =
                new Optimizer(Optimizer.sgd().setLearningRateTracker(Tracker.fixed(1f))) {
                    @Override
                    public void update(String parameterId, NDArray weight, NDArray grad) {
                        weight.subi(grad);
                    }
                };
        assertFalse(FusedUpdates.knows(own));
        assertTrue(FusedUpdates.open(Device.cpu()).isEmpty());
    }
}
