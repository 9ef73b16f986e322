// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import com.sun.jna.Library;
import com.sun.jna.Native;
import com.sun.jna.Pointer;
import com.sun.jna.ptr.IntByReference;
import com.sun.jna.ptr.PointerByReference;

/**
 * NVML's functions for the links of GPUs. They return 0 on success. A function that the library
 * lacks throws {@link UnsatisfiedLinkError} when it is called, so the others can still be used.
 */
interface Nvml extends Library {

    int SUCCESS = 0;
    int INVALID_ARGUMENT = 2;

    /** The device type of an NVLink's remote end: a GPU. */
    int REMOTE_GPU = 0;

    /** The size of nvmlPciInfo_t in bytes. */
    int PCI_INFO_BYTES = 68;

    /** The offset of the zero-terminated bus id in nvmlPciInfo_t. */
    int PCI_INFO_BUS_ID = 36;

    /** The index of NVLink for {@link #nvmlDeviceGetP2PStatus}, whose status 0 is "OK". */
    int P2P_NVLINK = 2;

    static Nvml load() {
        return Native.load("libnvidia-ml.so.1", Nvml.class);
    }

    String nvmlErrorString(int result);

    int nvmlInit_v2();

    int nvmlShutdown();

    int nvmlDeviceGetHandleByPciBusId_v2(String busId, PointerByReference device);

    int nvmlDeviceGetNvLinkState(Pointer device, int link, IntByReference active);

    int nvmlDeviceGetNvLinkRemoteDeviceType(Pointer device, int link, IntByReference type);

    int nvmlDeviceGetNvLinkRemotePciInfo_v2(Pointer device, int link, Pointer pciInfo);

    int nvmlDeviceGetP2PStatus(Pointer one, Pointer other, int index, IntByReference status);

    int nvmlDeviceGetTopologyCommonAncestor(Pointer one, Pointer other, IntByReference level);
}
