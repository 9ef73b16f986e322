// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.jna.Pointer;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

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

    private static KernelConstants.Layout layout() {
        String text =
                """
                struct Inner {
                  const float* x;
                  u32 count;
                };
                struct Outer {
                  float factor;
                  u32 rows;
                  Inner inner;
                  u64 all[2];
                };
                """;
        return new KernelConstants(new KernelSource("test.cu", text, Map.of())).struct("Outer");
    }

    @Test
    void structsAreFilledByMemberName() {
        arguments
                .add(1)
                .addStruct(layout())
                .put("all[1]", 6)
                .put("inner.count", 3)
                .put("factor", 0.5f)
                .put("inner.x", 1L << 40)
                .put("all[0]", 5)
                .put("rows", -7)
                .add(2);
        Pointer struct = argument(1);
        assertEquals(0.5f, struct.getFloat(0));
        assertEquals(-7, struct.getInt(4));
        assertEquals(1L << 40, struct.getLong(8));
        assertEquals(3, struct.getInt(16));
        assertEquals(5, struct.getLong(24));
        assertEquals(6, struct.getLong(32));
        arguments.requireSizes(new int[] {4, 40, 4}, "k");
    }

    @Test
    void wrongMembersAreRefused() {
        arguments.addStruct(layout()).put("rows", 1);
        for (Executable wrong :
                List.<Executable>of(
                        () -> arguments.put("rows", 1),
                        () -> arguments.put("columns", 1),
                        () -> arguments.put("inner.count", 1L << 32),
                        () -> arguments.put("inner.count", 1f),
                        () -> arguments.put("factor", 1),
                        () -> arguments.put("inner.x", 1f))) {
            assertThrows(IllegalArgumentException.class, wrong);
        }
        for (Executable early :
                List.<Executable>of(
                        () -> arguments.add(1), () -> arguments.requireSizes(null, "k"))) {
            var e = assertThrows(IllegalArgumentException.class, early);
            assertEquals(
                    "members of Outer are missing: [factor, inner.x, inner.count, all[0], all[1]]",
                    e.getMessage());
        }
        arguments.clear().add(1);
        assertThrows(IllegalArgumentException.class, () -> arguments.put("rows", 1));
    }

    @Test
    void refusesMoreArgumentsThanALaunchTakes() {
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
    void launchSizesKeepTheirPartsAndRefuseEmptyOnes() {
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
