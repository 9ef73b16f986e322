// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.jna.Pointer;
import org.junit.jupiter.api.Test;

class KernelArgumentsTest {

    private final KernelArguments arguments = new KernelArguments();

    private Pointer argument(int index) {
        return new Pointer(arguments.address()).getPointer((long) index * Long.BYTES);
    }

    @Test
    void everyArgumentIsAtItsAddress() {
        arguments.add(7L).clear();
        arguments.add(-5).add(1L << 40).add(0.5f).add(0.25).addStruct(1, 2, 3).add(9);
        assertEquals(-5, argument(0).getInt(0));
        assertEquals(1L << 40, argument(1).getLong(0));
        assertEquals(0.5f, argument(2).getFloat(0));
        assertEquals(0.25, argument(3).getDouble(0));
        assertEquals(3, argument(4).getLong(16));
        assertEquals(9, argument(5).getInt(0));
        arguments.requireSizes(new int[] {4, 8, 4, 8, 24, 4}, "k");
        arguments.requireSizes(null, "k");
    }

    @Test
    void wrongArgumentsAreRefused() {
        arguments.add(1).add(2L);
        var count =
                assertThrows(
                        IllegalArgumentException.class,
                        () -> arguments.requireSizes(new int[] {4}, "k"));
        assertEquals("k takes 1 arguments, not 2", count.getMessage());
        var size =
                assertThrows(
                        IllegalArgumentException.class,
                        () -> arguments.requireSizes(new int[] {4, 4}, "k"));
        assertEquals("argument 1 of k must have 4 bytes, not 8", size.getMessage());
    }

    @Test
    void limits() {
        for (int i = 0; i < KernelArguments.MAX_COUNT; i++) {
            arguments.add(i);
        }
        assertThrows(IllegalArgumentException.class, () -> arguments.add(0));
        arguments.clear().addStruct(new long[512]);
        assertThrows(IllegalArgumentException.class, () -> arguments.add(0));
        assertThrows(
                IllegalArgumentException.class, () -> arguments.clear().addStruct(new long[513]));
        assertThrows(IllegalArgumentException.class, () -> arguments.clear().addStruct());
    }

    @Test
    void sizesOfLaunches() {
        LaunchSize size = LaunchSize.of(2, 128).withShared(1024).asDependent();
        assertEquals(new LaunchSize(2, 1, 1, 128, 1, 1, 1024, true, false), size);
        LaunchSize together = LaunchSize.of(2, 128).asCooperative().withShared(8);
        assertEquals(new LaunchSize(2, 1, 1, 128, 1, 1, 8, false, true), together);
        assertThrows(IllegalArgumentException.class, () -> LaunchSize.of(0, 128));
        assertThrows(IllegalArgumentException.class, () -> LaunchSize.of(1, 0));
        var e = assertThrows(IllegalArgumentException.class, () -> size.withShared(-1));
        assertTrue(e.getMessage().contains("-1 bytes"), e.getMessage());
    }
}
