// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.internal;

import ai.djl.Device;
import ai.djl.pytorch.jni.JniUtils;
import org.djlx.nativeops.host.CpuKernels;

/** Optimizer kernels of the CPU, with as many threads as libtorch's operators use. */
final class CpuUpdates extends FusedUpdates {

    CpuUpdates(Device device) {
        super(device);
    }

    @Override
    void launch(long[] addresses, long size, float[] values, boolean adamW) {
        boolean adam = addresses.length == 4;
        int next = adam ? 1 : 0; // Only Adam has a corrected rate.
        CpuKernels.djlx_cpu_update(
                JniUtils.getNumThreads(),
                size,
                addresses[0],
                addresses[1],
                addresses.length > 2 ? addresses[2] : 0,
                adam ? addresses[3] : 0,
                values[0],
                values[next],
                values[next + 1],
                values[next + 2],
                values[next + 3],
                addresses.length > 2 ? values[next + 4] : 0,
                adam ? values[6] : 0,
                adam ? values[7] : 0,
                adamW ? 1 : 0);
    }
}
