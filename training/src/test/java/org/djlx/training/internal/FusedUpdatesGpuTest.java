// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.internal;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.engine.EngineException;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.optimizer.Optimizer;
import java.util.Map;
import java.util.Random;
import org.djlx.collectives.GpuTests;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.torch.NoGradient;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** DJL's optimizers by one kernel, beside themselves: all results are the same to the bit. */
@Tag("gpu")
@Timeout(100)
class FusedUpdatesGpuTest {

    private static final Device GPU = Device.gpu(0);
    private static final int STEPS = 4;

    private final Random random = new Random(7);

    @BeforeEach
    void requireGpu() {
        GpuTests.require(1, NativeLibrary.NVRTC);
    }

    @ParameterizedTest
    @ValueSource(strings = {"sgd", "sgd with all", "momentum", "adam", "adam with all", "adamW"})
    void kernelsEqualDjlBitForBit(String name) {
        for (Shape shape : new Shape[] {new Shape(1), new Shape(7), new Shape(1237, 1001)}) {
            try (NDManager manager = NDManager.newBaseManager(GPU, "PyTorch");
                    FusedUpdates updates = FusedUpdates.open(GPU).orElseThrow()) {
                Optimizer theirs = FusedUpdatesTest.optimizer(name);
                Optimizer ours = FusedUpdatesTest.optimizer(name);
                assertTrue(FusedUpdates.knows(ours));
                NDArray expected = FusedUpdatesTest.random(random, manager, shape);
                NDArray parameter = expected.duplicate();
                for (int step = 0; step < STEPS; step++) {
                    NDArray gradient = FusedUpdatesTest.random(random, manager, shape);
                    float[] values = gradient.toFloatArray();
                    theirs.update("p", expected, gradient);
                    updates.update(ours, "p", parameter, gradient);
                    assertArrayEquals(values, gradient.toFloatArray());
                }
                String what = name + " of " + shape;
                assertArrayEquals(expected.toFloatArray(), parameter.toFloatArray(), what);
                Map<String, NDArray> states = new OptimizerState(ours).arrays("p", GPU);
                new OptimizerState(theirs)
                        .arrays("p", GPU)
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
        try (NDManager manager = NDManager.newBaseManager(GPU, "PyTorch");
                FusedUpdates updates = FusedUpdates.open(GPU).orElseThrow()) {
            int count = values.length;
            NDArray each = manager.create(values);
            NDArray expected = each.reshape(count, 1).repeat(1, count);
            NDArray parameter = expected.duplicate();
            NDArray gradient = each.reshape(1, count).repeat(0, count);
            FusedUpdatesTest.optimizer(name).update("p", expected, gradient);
            updates.update(FusedUpdatesTest.optimizer(name), "p", parameter, gradient);
            assertArrayEquals(expected.toFloatArray(), parameter.toFloatArray(), name);
        }
    }

    /** A tensor may begin anywhere in its storage, at no multiple of 16 bytes. */
    @Test
    void kernelsTakeUnalignedArrays() {
        try (NDManager manager = NDManager.newBaseManager(GPU, "PyTorch");
                FusedUpdates updates = FusedUpdates.open(GPU).orElseThrow()) {
            NDArray whole = FusedUpdatesTest.random(random, manager, new Shape(1003));
            NDArray gradients = FusedUpdatesTest.random(random, manager, new Shape(1003));
            NDArray expected = whole.duplicate();
            FusedUpdatesTest.optimizer("sgd")
                    .update("p", expected.get("1:1001"), gradients.get("1:1001"));
            updates.update(
                    FusedUpdatesTest.optimizer("sgd"),
                    "p",
                    whole.get("1:1001"),
                    gradients.get("1:1001"));
            assertArrayEquals(expected.toFloatArray(), whole.toFloatArray());
        }
    }

    /** As with DJL's own updates, a backward pass cannot go through what was computed before. */
    @Test
    void updatesIncrementTheAutogradVersion() {
        try (NDManager manager = NDManager.newBaseManager(GPU, "PyTorch");
                FusedUpdates updates = FusedUpdates.open(GPU).orElseThrow();
                GradientScope scope = GradientScope.open()) {
            NDArray parameter = manager.ones(new Shape(3));
            parameter.setRequiresGradient(true);
            NDArray loss = parameter.square().sum();
            NDArray gradient = manager.ones(new Shape(3));
            Optimizer optimizer = FusedUpdatesTest.optimizer("sgd");
            NoGradient.run(() -> updates.update(optimizer, "p", parameter, gradient));
            assertThrows(EngineException.class, () -> scope.backward(loss));
        }
    }

    /** What the kernels cannot do, the optimizer does, to the parameter itself. */
    @Test
    void otherElementTypesUseDjlsOperators() {
        try (NDManager manager = NDManager.newBaseManager(GPU, "PyTorch");
                FusedUpdates updates = FusedUpdates.open(GPU).orElseThrow()) {
            for (String name : new String[] {"momentum", "adam"}) {
                NDArray expected =
                        FusedUpdatesTest.random(random, manager, new Shape(5))
                                .toType(DataType.FLOAT64, true);
                NDArray parameter = expected.duplicate();
                parameter.setRequiresGradient(true);
                try (GradientScope scope = GradientScope.open()) {
                    scope.backward(parameter.square().sum());
                }
                NDArray gradient = parameter.getGradient();
                NoGradient.run(
                        () -> {
                            FusedUpdatesTest.optimizer(name)
                                    .update("p", expected, gradient.duplicate());
                            updates.update(
                                    FusedUpdatesTest.optimizer(name), "p", parameter, gradient);
                            assertArrayEquals(expected.toDoubleArray(), parameter.toDoubleArray());
                            assertEquals(0, gradient.abs().sum().getDouble(), "DJL has zeroed it");
                        });
            }
        }
    }
}
