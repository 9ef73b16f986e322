/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.lang.management.BufferPoolMXBean;
import java.lang.management.ManagementFactory;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.BooleanSupplier;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** Who closes an array while work on it is under way must not take its elements away. */
class TorchAliasTest {

    private static final int FLOATS = 8 << 20;

    private final NDManager manager = NDManager.newBaseManager(Device.cpu(), "PyTorch");

    @AfterEach
    void close() {
        manager.close();
    }

    /** Bytes of the buffers that Java has allocated outside the heap. */
    private static long directBytes() {
        return ManagementFactory.getPlatformMXBeans(BufferPoolMXBean.class).stream()
                .filter(pool -> pool.getName().equals("direct"))
                .mapToLong(BufferPoolMXBean::getMemoryUsed)
                .sum();
    }

    private static boolean becomes(BooleanSupplier condition, int millis) throws Exception {
        long end = System.nanoTime() + millis * 1_000_000L;
        while (!condition.getAsBoolean() && System.nanoTime() < end) {
            System.gc();
            Thread.sleep(20);
        }
        return condition.getAsBoolean();
    }

    @Test
    void keepsElementsThatLieInJavaMemory() throws Exception {
        NDArray original = manager.create(new float[FLOATS]);
        long bytes = directBytes();
        assertTrue(bytes >= FLOATS * 4L, "DJL puts the elements elsewhere: " + bytes + " bytes");

        NDArray alias = Torch.alias(manager, original);
        NDArray second = Torch.alias(manager, alias);
        original.close();
        alias.close();
        assertFalse(
                becomes(() -> directBytes() <= bytes - FLOATS * 4L, 500),
                "the elements were freed while there was an alias");
        assertEquals(0f, second.getFloat(FLOATS - 1));

        second.close();
        assertTrue(
                becomes(() -> directBytes() <= bytes - FLOATS * 4L, 30_000),
                "the elements were not freed with the last alias");
    }

    @Test
    void keepsMemoryThatAnArrayIsAViewOf() {
        AtomicBoolean freed = new AtomicBoolean();
        try (NDArray owner = manager.ones(new Shape(4))) {
            NativeMemory memory =
                    new NativeMemory(
                            Torch.dataPointer(owner), 16, Device.cpu(), () -> freed.set(true));
            NDArray view = Torch.view(manager, memory, 0, new Shape(4), ScalarType.FLOAT32);
            NDArray alias = Torch.alias(manager, view);
            view.close();
            memory.close();
            assertFalse(freed.get(), "freed while there was an alias");
            assertEquals(1f, alias.getFloat(3));
            alias.close();
            assertTrue(freed.get());
        }
    }
}
