// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import org.bytedeco.cuda.global.cudart;

/** The attributes of {@link CudaDevice#attribute}. */
public enum CudaAttribute {
    MULTIPROCESSOR_COUNT(cudart.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
    COMPUTE_CAPABILITY_MAJOR(cudart.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
    MULTICAST(cudart.CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED), // within NVSwitches
    COMPUTE_CAPABILITY_MINOR(cudart.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
    /** The maximum shared memory of a block, in bytes. */
    MAX_SHARED_MEMORY_PER_BLOCK(cudart.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
    /** 1 if virtual memory management is supported, else 0; see {@link CudaVirtualMemory}. */
    VIRTUAL_MEMORY_MANAGEMENT(cudart.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED),
    /** 1 if virtual memory can be exported as a file descriptor, else 0. */
    FILE_DESCRIPTOR_HANDLES(cudart.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);

    private final int code;

    CudaAttribute(int code) {
        this.code = code;
    }

    int code() {
        return code;
    }
}
