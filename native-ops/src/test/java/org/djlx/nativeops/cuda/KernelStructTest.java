// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import com.sun.jna.Pointer;
import org.djlx.nativeops.torch.ScalarType;
import org.junit.jupiter.api.Test;

class KernelStructTest {

    @Test
    void membersAreWhereTheyArePut() {
        KernelStruct struct = new KernelStruct(24);
        struct.put(0, 1L << 40).put(8, 1.5f).put(16, -1L).put(16, 7L);
        assertEquals(24, struct.byteSize());
        Pointer memory = new Pointer(struct.address(0, 24));
        assertEquals(1L << 40, memory.getLong(0));
        assertEquals(1.5f, memory.getFloat(8));
        assertEquals(0, memory.getInt(12));
        assertEquals(7, memory.getLong(16));
        assertArrayEquals(memory.getByteArray(0, 24), bytes(struct));
    }

    private static byte[] bytes(KernelStruct struct) {
        byte[] bytes = new byte[struct.byteSize()];
        struct.bytes().get(bytes);
        return bytes;
    }

    @Test
    void memoryIsAlignedForTensorMaps() {
        for (int size = 1; size < 200; size += 7) {
            assertEquals(0, new KernelStruct(size).address(0, size) % 64);
        }
    }

    @Test
    void argumentsPointToIt() {
        KernelStruct struct = new KernelStruct(16);
        KernelArguments arguments = new KernelArguments().add(3).add(struct);
        Pointer addresses = new Pointer(arguments.address());
        assertEquals(struct.address(0, 16), addresses.getLong(8));
        arguments.requireSizes(new int[] {4, 16}, "kernel");
        assertThrows(
                IllegalArgumentException.class,
                () -> arguments.requireSizes(new int[] {4, 24}, "kernel"));
    }

    @Test
    void putOutsideOfTheStructIsRefused() {
        assertThrows(IllegalArgumentException.class, () -> new KernelStruct(0));
        KernelStruct struct = new KernelStruct(16);
        assertThrows(IndexOutOfBoundsException.class, () -> struct.put(9, 1L));
        assertThrows(IndexOutOfBoundsException.class, () -> struct.put(-1, 1f));
        assertThrows(IndexOutOfBoundsException.class, () -> struct.address(8, 16));
    }

    @Test
    void tensorMapsThatTheEngineDoesNotTakeAreRefused() {
        KernelStruct struct = new KernelStruct(256);
        long[] sizes = {64, 8};
        refuse(() -> new TensorMap(struct, 0, ScalarType.FLOAT32, sizes, new long[] {128}, 64, 8));
        refuse(() -> new TensorMap(struct, 0, ScalarType.FLOAT16, sizes, new long[0], 64, 8));
        refuse(() -> new TensorMap(struct, 0, ScalarType.FLOAT16, sizes, new long[] {128}, 64));
        refuse(() -> new TensorMap(struct, 0, ScalarType.FLOAT16, sizes, new long[] {136}, 64, 8));
        refuse(() -> new TensorMap(struct, 32, ScalarType.FLOAT16, sizes, new long[] {128}, 64, 8));
    }

    private static void refuse(Runnable made) {
        assertThrows(IllegalArgumentException.class, made::run);
    }
}
