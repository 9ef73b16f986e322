// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.host;

import static org.junit.jupiter.api.Assertions.fail;

import com.sun.jna.Structure;
import java.util.Arrays;

/** Statistics of the C library's heap, from which libtorch takes its memory on CPUs. */
public final class CHeap {

    private CHeap() {}

    /** The C library's {@code struct mallinfo2}, whose fields JNA finds by their names. */
    @Structure.FieldOrder({
        "arena",
        "ordblks",
        "smblks",
        "hblks",
        "hblkhd",
        "usmblks",
        "fsmblks",
        "uordblks",
        "fordblks",
        "keepcost"
    })
    public static final class Mallinfo2 extends Structure implements Structure.ByValue {
        public long arena;
        public long ordblks;
        public long smblks;
        public long hblks;
        public long hblkhd;
        public long usmblks;
        public long fsmblks;
        public long uordblks;
        public long fordblks;
        public long keepcost;
    }

    /**
     * Runs a call many times, in rounds, and fails if it leaks: the smallest leak is 32 bytes a
     * call. The JVM's compilers take and return megabytes of this heap at times of their own, so a
     * leak is what the heap grows by in most of the last rounds, until they have nothing to do.
     */
    public static void assertNoLeak(int callsInARound, Runnable call) {
        long[] growth = new long[7];
        for (int round = 0; round < 100; round++) {
            long before = bytesInUse();
            for (int i = 0; i < callsInARound; i++) {
                call.run();
            }
            growth[round % growth.length] = bytesInUse() - before;
            long[] sorted = growth.clone();
            Arrays.sort(sorted);
            if (round >= growth.length - 1 && sorted[sorted.length / 2] < 16L * callsInARound) {
                return;
            }
        }
        fail(
                "bytes by which the C heap grew in each of the last rounds: "
                        + Arrays.toString(growth));
    }

    /**
     * Returns how many bytes are allocated: in all arenas, and in large blocks, which are mapped
     * one by one. What is free and what the C library keeps of it is not counted.
     */
    public static long bytesInUse() {
        Mallinfo2 info =
                (Mallinfo2)
                        com.sun.jna.NativeLibrary.getInstance("c")
                                .getFunction("mallinfo2")
                                .invoke(Mallinfo2.class, new Object[0]);
        return info.uordblks + info.hblkhd;
    }
}
