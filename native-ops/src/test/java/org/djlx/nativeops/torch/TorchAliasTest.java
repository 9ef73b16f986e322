// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.pytorch.engine.PtNDArray;
import ai.djl.training.GradientCollector;
import java.lang.ref.WeakReference;
import java.nio.ByteBuffer;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.BooleanSupplier;
import java.util.function.Function;
import java.util.stream.Stream;
import org.djlx.nativeops.host.NativeMemory;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Named;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** Who closes an array while work on it is under way must not take its elements away. */
class TorchAliasTest {

    private final NDManager manager = NDManager.newBaseManager(Device.cpu(), "PyTorch");

    @AfterEach
    void close() {
        manager.close();
    }

    private static boolean becomes(BooleanSupplier condition, int millis) throws Exception {
        long end = System.nanoTime() + millis * 1_000_000L;
        while (!condition.getAsBoolean() && System.nanoTime() < end) {
            System.gc();
            Thread.sleep(20);
        }
        return condition.getAsBoolean();
    }

    private static Stream<Named<Function<NDArray, AutoCloseable>>> holds() {
        return Stream.of(
                Named.of("alias", array -> Torch.alias(array.getManager(), array)),
                Named.of("hold", TensorHold::new));
    }

    @ParameterizedTest
    @MethodSource("holds")
    void keepsElementsThatLieInJavaMemory(Function<NDArray, AutoCloseable> hold) throws Exception {
        NDArray original = manager.create(new float[] {1, 2, 3});
        ByteBuffer buffer = BufferOfArray.get((PtNDArray) original);
        assertNotNull(buffer, "DJL puts the elements elsewhere");
        WeakReference<ByteBuffer> elements = new WeakReference<>(buffer);
        buffer = null;

        NDArray alias = Torch.alias(manager, original);
        AutoCloseable held = hold.apply(alias);
        original.close();
        alias.close();
        assertFalse(
                becomes(() -> elements.get() == null, 500),
                "the elements were freed while they were held");

        held.close();
        assertTrue(
                becomes(() -> elements.get() == null, 30_000),
                "the elements were not freed with what held them");
    }

    @ParameterizedTest
    @MethodSource("holds")
    void keepsMemoryThatAnArrayIsAViewOf(Function<NDArray, AutoCloseable> hold) throws Exception {
        AtomicBoolean freed = new AtomicBoolean();
        try (NDArray owner = manager.ones(new Shape(4))) {
            NativeMemory memory =
                    new NativeMemory(
                            Torch.dataPointer(owner), 16, Device.cpu(), () -> freed.set(true));
            NDArray view = Torch.view(manager, memory, 0, new Shape(4), ScalarType.FLOAT32);
            AutoCloseable held = hold.apply(view);
            view.close();
            memory.close();
            assertFalse(freed.get(), "freed while it was held");
            held.close();
            assertTrue(freed.get());
        }
    }

    @Test
    void anAliasHasTheElements() {
        NDArray original = manager.create(new float[] {1, 2, 3});
        NDArray alias = Torch.alias(manager, original);
        original.close();
        assertArrayEquals(new float[] {1, 2, 3}, alias.toFloatArray());
    }

    /** Autograd refuses to read a written array, but not what another one has written. */
    @Test
    void writesToDataAreNoWritesToTheArray() {
        NDArray weight = Torch.alias(manager, manager.create(new float[] {1, 2, 3}));
        weight.setRequiresGradient(true);
        NDArray data = Torch.data(manager, weight.get("1:"));
        long version = Torch.version(weight);
        try (GradientCollector collector = manager.getEngine().newGradientCollector()) {
            NDArray y = weight.mul(weight).sum();
            Torch.copy(data, manager.create(new float[] {5, 7}));
            collector.backward(y);
        }
        assertFalse(Torch.requiresGradient(data));
        assertEquals(version, Torch.version(weight));
        assertArrayEquals(new float[] {1, 5, 7}, weight.toFloatArray());
        assertArrayEquals(new float[] {2, 10, 14}, weight.getGradient().toFloatArray());
    }

    @Test
    void makeEmptyEmptiesAllAliases() {
        NDArray array = manager.create(new float[] {1, 2, 3}).neg();
        NDArray alias = Torch.alias(manager, array);
        NDArray view = array.get("1:");
        Torch.makeEmpty(array);
        assertArrayEquals(new long[] {0}, Torch.info(array).sizes());
        assertArrayEquals(new long[] {0}, Torch.info(alias).sizes());
        assertArrayEquals(new float[] {-2, -3}, view.toFloatArray());
    }
}
