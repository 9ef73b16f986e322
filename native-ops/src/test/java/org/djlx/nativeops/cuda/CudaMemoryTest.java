// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import org.djlx.nativeops.host.NativeMemory;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.djlx.nativeops.torch.TorchInPlace;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Tag("gpu")
@Timeout(60)
class CudaMemoryTest {

    private CudaDevice device;
    private NDManager manager;

    @BeforeEach
    void open() {
        Gpus.require(1);
        device = Gpus.open(0);
        manager = NDManager.newBaseManager(Device.gpu(0), "PyTorch");
    }

    @AfterEach
    void close() {
        if (device != null) {
            manager.close();
            device.close();
        }
    }

    @Test
    void bfloat16ViewIsWrittenInPlace() {
        NativeMemory memory = CudaMemory.allocate(device, 4096);
        assertEquals(Device.gpu(0), memory.device());
        assertEquals(0, memory.address() % 256);
        NDArray view = Torch.view(manager, memory, 64, new Shape(2, 3), ScalarType.BFLOAT16);
        memory.close();
        NDArray source = manager.create(new float[] {1, -2, 3.5f, 1e30f, 1.0078125f, 0});
        Torch.copy(view, source.reshape(2, 3));
        NDArray back = Torch.cast(view, ScalarType.FLOAT32);
        assertArrayEquals(
                new float[] {1, -2, 3.5f, 1.0001e30f, 1.0078125f, 0}, back.toFloatArray(), 4e27f);
        assertEquals(1.0078125f, back.toFloatArray()[4]);
        int[] words = Gpus.read(device, memory.address() + 64, 3);
        assertEquals(0xc0003f80, words[0], "-2 and 1 in bfloat16");
        TorchInPlace.add(view, view);
        assertEquals(2.015625f, Torch.cast(view, ScalarType.FLOAT32).toFloatArray()[4]);
        view.close();
    }

    @Test
    void outlivesItsDevice() {
        CudaDevice other = Gpus.open(0);
        NativeMemory memory = CudaMemory.allocate(other, 64);
        other.close();
        Gpus.write(device, memory.address(), 1, 2, 3);
        assertArrayEquals(new int[] {1, 2, 3}, Gpus.read(device, memory.address(), 3));
        memory.close();
    }

    @Test
    void pinnedMemoryIsSharedByHostAndGpu() {
        NativeMemory pinned = CudaMemory.allocatePinned(device, 4096);
        assertEquals(Device.cpu(), pinned.device());
        try (NDManager host = NDManager.newBaseManager(Device.cpu(), "PyTorch");
                CudaStream stream = CudaStream.create(device)) {
            NDArray view = Torch.view(host, pinned, 0, new Shape(4), ScalarType.INT32);
            pinned.close();
            stream.memsetAsync(pinned.address(), (byte) 0, 16);
            stream.writeValue32(pinned.address() + 4, -3);
            stream.synchronize();
            assertArrayEquals(new int[] {0, -3, 0, 0}, view.toIntArray());
        }
    }

    @Test
    void outOfMemoryErrorNamesTheSize() {
        var e = assertThrows(CudaException.class, () -> CudaMemory.allocate(device, 1L << 50));
        assertEquals("cuMemAlloc", e.call());
        assertEquals("CUDA_ERROR_OUT_OF_MEMORY", e.errorName());
        assertEquals(2, e.code());
        assertTrue(e.getMessage().contains("out of memory"), e.getMessage());
        assertThrows(IllegalArgumentException.class, () -> CudaMemory.allocate(device, 0));
        assertThrows(IllegalArgumentException.class, () -> CudaMemory.allocatePinned(device, -1));
    }
}
