// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.nccl;

import com.sun.jna.Native;
import org.djlx.nativeops.LibraryProbes;

/**
 * Binds NCCL's functions for symmetric memory. A separate class, because only NCCL 2.27 and later
 * have these functions, and JNA cannot bind a class with missing functions.
 */
final class NcclWindowCalls {

    static final int COLLECTIVE_SYMMETRIC = 1; // NCCL_WIN_COLL_SYMMETRIC

    static {
        Native.register(
                NcclWindowCalls.class,
                LibraryProbes.open("NCCL", "see NativeLibrary.NCCL", "libnccl.so.2"));
    }

    private NcclWindowCalls() {}

    static native int ncclMemAlloc(long resultAddress, long byteSize);

    static native int ncclMemFree(long address);

    static native int ncclCommWindowRegister(
            long comm, long address, long byteSize, long resultAddress, int flags);

    static native int ncclCommWindowDeregister(long comm, long window);
}
