// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import com.sun.jna.Library;
import com.sun.jna.Native;
import com.sun.jna.ptr.IntByReference;

/**
 * The driver's functions for pairs of GPUs. Not all versions of the presets bind these functions.
 * They return 0 on success.
 */
interface PeerDriver extends Library {

    /** P2P attribute: the relative speed of a pair; 0 is the fastest. */
    int PERFORMANCE_RANK = 1;

    /** P2P attribute: whether the first GPU can access the second GPU's memory. */
    int ACCESS_SUPPORTED = 2;

    /**
     * P2P attribute: whether the first GPU's atomics on the second GPU's memory are native, as over
     * NVLink.
     */
    int NATIVE_ATOMIC_SUPPORTED = 3;

    static PeerDriver load() {
        return Native.load("libcuda.so.1", PeerDriver.class);
    }

    int cuDeviceGetByPCIBusId(IntByReference device, String busId);

    int cuDeviceGetP2PAttribute(IntByReference value, int attribute, int from, int to);
}
