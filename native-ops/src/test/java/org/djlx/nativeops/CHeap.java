/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops;

import com.sun.jna.Structure;

/** Statistics of the C library's heap. */
final class CHeap {

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

    /** Returns how many bytes are allocated in all arenas, without large blocks. */
    static long allocatedBytes() {
        Mallinfo2 info =
                (Mallinfo2)
                        com.sun.jna.NativeLibrary.getInstance("c")
                                .getFunction("mallinfo2")
                                .invoke(Mallinfo2.class, new Object[0]);
        return info.uordblks;
    }
}
