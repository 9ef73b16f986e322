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
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;
import java.lang.reflect.Method;
import java.util.Collections;
import java.util.HashSet;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.nativeops.torch.NoGradient;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** DJL's optimizers by one kernel, beside themselves: all results are the same to the bit. */
class FusedUpdatesTest {

    private static final int STEPS = 4;

    private final Random random = new Random(7);

    /** {@return the device of the kernels} */
    Device device() {
        return Device.cpu();
    }

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
    }

    @ParameterizedTest
    @ValueSource(strings = {"sgd", "sgd with all", "momentum", "adam", "adam with all", "adamW"})
    void kernelsEqualDjlBitForBit(String name) {
        for (Shape shape :
                new Shape[] {new Shape(1), new Shape(7), new Shape(53), new Shape(1237, 1001)}) {
            try (NDManager manager = NDManager.newBaseManager(device(), "PyTorch");
                    FusedUpdates updates = FusedUpdates.open(device()).orElseThrow()) {
                Optimizer theirs = optimizer(name);
                Optimizer ours = optimizer(name);
                assertTrue(FusedUpdates.knows(ours));
                NDArray expected = random(random, manager, shape);
                NDArray parameter = expected.duplicate();
                for (int step = 0; step < STEPS; step++) {
                    NDArray gradient = random(random, manager, shape);
                    float[] values = gradient.toFloatArray();
                    theirs.update("p", expected, gradient);
                    updates.update(ours, "p", parameter, gradient);
                    assertArrayEquals(values, gradient.toFloatArray());
                }
                String what = name + " of " + shape;
                assertArrayEquals(expected.toFloatArray(), parameter.toFloatArray(), what);
                Map<String, NDArray> states = new OptimizerState(ours).arrays("p", device());
                new OptimizerState(theirs)
                        .arrays("p", device())
                        .forEach(
                                (slot, state) ->
                                        assertArrayEquals(
                                                state.toFloatArray(),
                                                states.get(slot).toFloatArray(),
                                                what + ", " + slot));
                assertEquals(STEPS, new OptimizerState(ours).count("p"));
            }
        }
    }

    /** What is not a number or infinite goes the same ways. */
    @ParameterizedTest
    @ValueSource(strings = {"sgd", "sgd with all", "adamW"})
    void kernelsKeepNanAndInfinity(String name) {
        float[] values = {
            Float.NaN, Float.POSITIVE_INFINITY, Float.NEGATIVE_INFINITY, -0f, 0, 1e-42f, 3e38f
        };
        try (NDManager manager = NDManager.newBaseManager(device(), "PyTorch");
                FusedUpdates updates = FusedUpdates.open(device()).orElseThrow()) {
            int count = values.length;
            NDArray each = manager.create(values);
            NDArray expected = each.reshape(count, 1).repeat(1, count);
            NDArray parameter = expected.duplicate();
            NDArray gradient = each.reshape(1, count).repeat(0, count);
            optimizer(name).update("p", expected, gradient);
            updates.update(optimizer(name), "p", parameter, gradient);
            assertArrayEquals(expected.toFloatArray(), parameter.toFloatArray(), name);
        }
    }

    /** A tensor may begin anywhere in its storage, at no multiple of 16 bytes. */
    @Test
    void kernelsTakeUnalignedArrays() {
        try (NDManager manager = NDManager.newBaseManager(device(), "PyTorch");
                FusedUpdates updates = FusedUpdates.open(device()).orElseThrow()) {
            NDArray whole = random(random, manager, new Shape(1003));
            NDArray gradients = random(random, manager, new Shape(1003));
            NDArray expected = whole.duplicate();
            optimizer("sgd").update("p", expected.get("1:1001"), gradients.get("1:1001"));
            updates.update(optimizer("sgd"), "p", whole.get("1:1001"), gradients.get("1:1001"));
            assertArrayEquals(expected.toFloatArray(), whole.toFloatArray());
        }
    }

    /** As with DJL's own updates, a backward pass cannot go through what was computed before. */
    @Test
    void updatesIncrementTheAutogradVersion() {
        try (NDManager manager = NDManager.newBaseManager(device(), "PyTorch");
                FusedUpdates updates = FusedUpdates.open(device()).orElseThrow();
                GradientScope scope = GradientScope.open()) {
            NDArray parameter = manager.ones(new Shape(3));
            parameter.setRequiresGradient(true);
            NDArray loss = parameter.square().sum();
            NDArray gradient = manager.ones(new Shape(3));
            Optimizer optimizer = optimizer("sgd");
            NoGradient.run(() -> updates.update(optimizer, "p", parameter, gradient));
            assertThrows(EngineException.class, () -> scope.backward(loss));
        }
    }

    /** What the kernels cannot do, the optimizer does, to the parameter itself. */
    @Test
    void otherElementTypesUseDjlsOperators() {
        try (NDManager manager = NDManager.newBaseManager(device(), "PyTorch");
                FusedUpdates updates = FusedUpdates.open(device()).orElseThrow()) {
            for (String name : new String[] {"momentum", "adam"}) {
                NDArray expected =
                        random(random, manager, new Shape(5)).toType(DataType.FLOAT64, true);
                NDArray parameter = expected.duplicate();
                parameter.setRequiresGradient(true);
                try (GradientScope scope = GradientScope.open()) {
                    scope.backward(parameter.square().sum());
                }
                NDArray gradient = parameter.getGradient();
                NoGradient.run(
                        () -> {
                            optimizer(name).update("p", expected, gradient.duplicate());
                            updates.update(optimizer(name), "p", parameter, gradient);
                            assertArrayEquals(expected.toDoubleArray(), parameter.toDoubleArray());
                            assertEquals(0, gradient.abs().sum().getDouble(), "DJL has zeroed it");
                        });
            }
        }
    }
}
