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
 * Binds NVML's functions for the links of GPUs. Load only if {@link NativeLibrary#NVML} is
 * available. All functions return 0 on success.
 */
final class Nvml {

    static final int SUCCESS = 0;

    /** The device type of an NVLink's remote end: a GPU. */
    static final int REMOTE_GPU = 0;

    /** The size of nvmlPciInfo_t in bytes. */
    static final int PCI_INFO_BYTES = 68;

    /** The offset of the zero-terminated bus id in nvmlPciInfo_t. */
    static final int PCI_INFO_BUS_ID = 36;

    /** The index of NVLink for {@link #nvmlDeviceGetP2PStatus}, whose status 0 is "OK". */
    static final int P2P_NVLINK = 2;

    static {
        Native.register(Nvml.class, LibraryProbes.openNvml());
    }

    private Nvml() {}

    /** Checks the result of a function. */
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
