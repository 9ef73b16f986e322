// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.host;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.engine.EngineException;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;

class NativeMemoryTest {

    private final AtomicInteger freed = new AtomicInteger();

    private NativeMemory memory(long address, long size, Device device) {
        return new NativeMemory(address, size, device, freed::incrementAndGet);
    }

    @Test
    void saysWhatItIs() {
        NativeMemory memory = memory(4096, 128, Device.gpu(3));
        assertEquals(4096, memory.address());
        assertEquals(128, memory.byteSize());
        assertEquals(Device.gpu(3), memory.device());
        assertTrue(memory.toString().contains("128 bytes at 0x1000 on gpu(3)"), memory.toString());
    }

    @Test
    void closingFreesOnce() {
        NativeMemory memory = memory(4096, 128, Device.cpu());
        assertFalse(memory.isClosed());
        memory.close();
        memory.close();
        assertTrue(memory.isClosed());
        assertEquals(1, freed.get());
    }

    @Test
    void zerosAreMappedUntilTheyAreClosed() throws IOException {
        long bytes = 64L << 20;
        NativeMemory memory = NativeMemory.allocateZeros(bytes, false);
        assertEquals(bytes, memory.byteSize());
        AtomicBuffer buffer = new AtomicBuffer(memory, bytes - 4096, 4096);
        byte[] page = new byte[4096];
        buffer.getBytes(0, page);
        assertArrayEquals(new byte[4096], page);
        buffer.putBytes(0, new byte[] {1}, 1);
        assertTrue(isMapped(memory.address()));
        memory.close();
        assertFalse(isMapped(memory.address()));
        assertThrows(EngineException.class, () -> NativeMemory.allocateZeros(1L << 60, false));
    }

    private static boolean isMapped(long address) throws IOException {
        return Files.readAllLines(Path.of("/proc/self/maps")).stream()
                .map(line -> line.substring(0, line.indexOf(' ')).split("-"))
                .anyMatch(
                        range ->
                                Long.parseUnsignedLong(range[0], 16) <= address
                                        && address < Long.parseUnsignedLong(range[1], 16));
    }

    @Test
    void lastReleaseFreesTheMemory() {
        NativeMemory memory = memory(4096, 128, Device.cpu());
        memory.retain();
        memory.close();
        assertEquals(0, freed.get());
        assertThrows(IllegalStateException.class, memory::retain);
        memory.release();
        assertEquals(1, freed.get());
        assertThrows(IllegalStateException.class, memory::release);
        assertEquals(1, freed.get());
    }

    @Test
    void freesOnceWhenThreadsRace() {
        for (int round = 0; round < 200; round++) {
            freed.set(0);
            NativeMemory memory = memory(4096, 128, Device.cpu());
            IntStream.range(0, 7).forEach(i -> memory.retain());
            IntStream.range(0, 8)
                    .parallel()
                    .forEach(
                            i -> {
                                if (i == 0) {
                                    memory.close();
                                } else {
                                    memory.release();
                                }
                            });
            assertEquals(1, freed.get());
        }
    }

    @Test
    void failureToFreeReachesTheCaller() {
        RuntimeException failure = new RuntimeException("free");
        NativeMemory memory =
                new NativeMemory(
                        4096,
                        1,
                        Device.cpu(),
                        () -> {
                            throw failure;
                        });
        assertSame(failure, assertThrows(RuntimeException.class, memory::close));
        memory.close();
    }

    @Test
    void wrongArgumentsAreRefused() {
        assertRefused("negative", 4096, -1, Device.cpu());
        assertRefused("is 0", 0, 1, Device.cpu());
        assertRefused("address space", -4096, 4097, Device.cpu());
        assertRefused("device is null", 4096, 1, null);
        assertRefused("neither", 4096, 1, new Device.MultiDevice("gpu", 0, 2));
        assertRefused("neither", 4096, 1, Device.of("mps", 0));
        assertRefused("neither", 4096, 1, Device.of("gpu", -1));
        assertThrows(
                IllegalArgumentException.class,
                () -> new NativeMemory(4096, 1, Device.cpu(), null));
        memory(0, 0, Device.cpu()).close();
        memory(-4096, 4095, Device.cpu()).close();
    }

    private void assertRefused(String reason, long address, long size, Device device) {
        var e = assertThrows(IllegalArgumentException.class, () -> memory(address, size, device));
        assertTrue(e.getMessage().contains(reason), e.getMessage());
    }
}
