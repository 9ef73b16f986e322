/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops.cuda;

import com.sun.jna.Native;
import com.sun.jna.Pointer;
import com.sun.jna.ptr.IntByReference;
import com.sun.jna.ptr.PointerByReference;
import org.djlx.nativeops.LibraryProbes;
import org.djlx.nativeops.NativeLibrary;

/**
 * Binds the functions of NVML that tell how GPUs are linked. Loaded only after {@link
 * NativeLibrary#NVML} was found available. All return 0 for success.
 */
final class Nvml {

    static final int SUCCESS = 0;

    /** What is at the other end of an NVLink. */
    static final int REMOTE_GPU = 0;

    /** The size of nvmlPciInfo_t, in bytes, and where in it the zero-terminated bus id is. */
    static final int PCI_INFO_BYTES = 68;

    static final int PCI_INFO_BUS_ID = 36;

    /** The index of peer access over NVLink, for {@link #nvmlDeviceGetP2PStatus}; 0 is "OK". */
    static final int P2P_NVLINK = 2;

    static {
        Native.register(Nvml.class, LibraryProbes.openNvml());
    }

    private Nvml() {}

    /** Checks what a function returned. */
    static void check(int result, String function) {
        if (result != SUCCESS) {
            throw new CudaException(
                    function, "NVML error " + result, result, nvmlErrorString(result));
        }
    }

    static native String nvmlErrorString(int result);

    static native int nvmlInit_v2();

    static native int nvmlShutdown();

    static native int nvmlDeviceGetHandleByPciBusId_v2(String busId, PointerByReference device);

    static native int nvmlDeviceGetPciInfo_v3(Pointer device, Pointer pciInfo);

    static native int nvmlDeviceGetNvLinkState(Pointer device, int link, IntByReference active);

    static native int nvmlDeviceGetNvLinkRemoteDeviceType(
            Pointer device, int link, IntByReference type);

    static native int nvmlDeviceGetNvLinkRemotePciInfo_v2(
            Pointer device, int link, Pointer pciInfo);

    static native int nvmlDeviceGetP2PStatus(
            Pointer one, Pointer other, int index, IntByReference status);

    static native int nvmlDeviceGetTopologyCommonAncestor(
            Pointer one, Pointer other, IntByReference level);
}
