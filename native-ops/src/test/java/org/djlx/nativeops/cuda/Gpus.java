// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import static org.junit.jupiter.api.Assumptions.assumeTrue;

import ai.djl.Device;
import com.sun.jna.Pointer;
import org.bytedeco.cuda.global.cudart;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.host.NativeMemory;

/** What tests on GPUs share. */
public final class Gpus {

    private Gpus() {}

    /** Skips the test, with the cause, unless there are as many GPUs. */
    public static void require(int count) {
        Throwable cause = NativeLibrary.CUDA_PRESETS.unavailabilityCause();
        assumeTrue(cause == null, () -> cause.getMessage());
        assumeTrue(
                CudaDevice.count() >= count,
                () -> "needs " + count + " GPUs, has " + CudaDevice.count());
    }

    public static CudaDevice open(int ordinal) {
        return CudaDevice.open(Device.gpu(ordinal));
    }

    /** Reads ints of a GPU, when all its work is done. */
    public static int[] read(CudaDevice device, long address, int count) {
        device.synchronize();
        try (NativeMemory host = CudaMemory.allocatePinned(device, (long) count * Integer.BYTES);
                CudaStream stream = CudaStream.create(device)) {
            stream.copyAsync(host.address(), address, host.byteSize());
            stream.synchronize();
            return new Pointer(host.address()).getIntArray(0, count);
        }
    }

    /** Writes ints to a GPU, and waits until they are there. */
    public static void write(CudaDevice device, long address, int... values) {
        try (NativeMemory host =
                        CudaMemory.allocatePinned(device, (long) values.length * Integer.BYTES);
                CudaStream stream = CudaStream.create(device)) {
            new Pointer(host.address()).write(0, values, 0, values.length);
            stream.copyAsync(address, host.address(), host.byteSize());
            stream.synchronize();
        }
    }

    /**
     * Lets a stream wait until a 32-bit word has reached a value: until {@code word - value >= 0}
     * as a signed difference. Until then nothing may make the host wait for the whole GPU, such as
     * loading a kernel or allocating memory.
     */
    static void waitValue32(CudaStream stream, long address, int value) {
        stream.call(
                "cuStreamWaitValue32",
                () ->
                        cudart.cuStreamWaitValue32(
                                stream.stream(), address, value, cudart.CU_STREAM_WAIT_VALUE_GEQ));
    }

    /** Returns {@code count} ints from {@code start} on. */
    public static int[] range(int start, int count) {
        int[] values = new int[count];
        for (int i = 0; i < count; i++) {
            values[i] = start + i;
        }
        return values;
    }
}
