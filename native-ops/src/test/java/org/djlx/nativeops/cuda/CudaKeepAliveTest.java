// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.concurrent.atomic.AtomicInteger;
import org.djlx.nativeops.host.NativeMemory;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Tag("gpu")
@Timeout(60)
class CudaKeepAliveTest {

    /** Large enough that libtorch allocates every such array by itself. */
    private static final int COUNT = 4 << 20;

    private static final Shape SHAPE = new Shape(COUNT);
    private static final long BYTES = 4L * COUNT;

    private CudaDevice device;
    private NDManager manager;

    @BeforeEach
    void open() {
        Gpus.require(1);
        device = Gpus.open(0);
        manager = NDManager.newBaseManager(Device.gpu(0), "PyTorch");
        // So that libtorch need not ask CUDA for memory while a stream is held up.
        NDArray[] blocks = new NDArray[6];
        for (int i = 0; i < blocks.length; i++) {
            blocks[i] = filled(i);
        }
        for (NDArray block : blocks) {
            block.close();
        }
        device.synchronize();
    }

    @AfterEach
    void close() {
        if (device != null) {
            manager.close();
            device.close();
        }
    }

    private NDArray filled(float value) {
        return manager.full(SHAPE, value);
    }

    private float[] floats(NativeMemory memory) {
        int[] bits = Gpus.read(device, memory.address(), COUNT);
        return new float[] {
            Float.intBitsToFloat(bits[0]), Float.intBitsToFloat(bits[bits.length - 1])
        };
    }

    @Test
    void storageIsNotReusedUntilTheStreamHasPassed() {
        try (CudaStream side = CudaStream.create(device);
                NativeMemory copy = CudaMemory.allocate(device, BYTES);
                HostFlag flag = new HostFlag(device)) {
            NDArray warmUp = filled(0);
            side.keepAlive(warmUp);
            device.synchronize();
            NDArray array = filled(5);
            device.synchronize();
            long address = Torch.dataPointer(array);
            flag.holdUp(side);
            side.copyAsync(copy.address(), address, BYTES);
            side.keepAlive(array);
            array.close();
            NDArray next = filled(7);
            assertNotEquals(address, Torch.dataPointer(next));
            side.releasePassed();
            NDArray another = filled(8);
            assertNotEquals(address, Torch.dataPointer(another), "not passed yet");
            flag.raise();
            side.synchronize();
            assertEquals(5f, floats(copy)[0]);
            assertEquals(5f, floats(copy)[1]);
            side.releasePassed();
            assertEquals(address, Torch.dataPointer(filled(9)), "free again");
        }
    }

    /** What would happen: libtorch gives the storage away at once. */
    @Test
    void storageIsReusedAtOnceWithoutKeepAlive() {
        try (CudaStream side = CudaStream.create(device);
                NativeMemory copy = CudaMemory.allocate(device, BYTES);
                HostFlag flag = new HostFlag(device)) {
            NDArray array = filled(5);
            device.synchronize();
            long address = Torch.dataPointer(array);
            flag.holdUp(side);
            side.copyAsync(copy.address(), address, BYTES);
            array.close();
            NDArray next = filled(7);
            assertEquals(address, Torch.dataPointer(next));
            CudaStream main = CudaStream.wrap(device, Torch.currentCudaStream(Device.gpu(0)));
            main.synchronize();
            main.close();
            flag.raise();
            side.synchronize();
            assertEquals(7f, floats(copy)[0], "the copy read the next array");
        }
    }

    @Test
    void keepAliveKeepsTheMemoryOfViews() {
        AtomicInteger freed = new AtomicInteger();
        try (CudaStream side = CudaStream.create(device);
                NativeMemory backing = CudaMemory.allocate(device, 256);
                HostFlag flag = new HostFlag(device)) {
            NativeMemory memory =
                    new NativeMemory(backing.address(), 256, Device.gpu(0), freed::incrementAndGet);
            NDArray view = Torch.view(manager, memory, 0, new Shape(64), ScalarType.FLOAT32);
            memory.close();
            flag.holdUp(side);
            side.keepAlive(view);
            view.close();
            side.releasePassed();
            assertEquals(0, freed.get());
            flag.raise();
            side.synchronize();
            side.releasePassed();
            assertEquals(1, freed.get());
        }
    }

    @Test
    void closedStreamsReleaseLater() {
        AtomicInteger freed = new AtomicInteger();
        try (CudaStream other = CudaStream.create(device);
                NativeMemory backing = CudaMemory.allocate(device, 256);
                HostFlag flag = new HostFlag(device)) {
            CudaStream side = CudaStream.create(device);
            NativeMemory memory =
                    new NativeMemory(backing.address(), 256, Device.gpu(0), freed::incrementAndGet);
            NDArray view = Torch.view(manager, memory, 0, new Shape(64), ScalarType.FLOAT32);
            memory.close();
            flag.holdUp(side);
            side.keepAlive(view);
            view.close();
            side.close();
            other.releasePassed();
            assertEquals(0, freed.get());
            flag.raise();
            device.synchronize();
            other.releasePassed();
            assertEquals(1, freed.get());
        }
    }

    @Test
    void wrongArraysLeaveNothingHeld() {
        AtomicInteger freed = new AtomicInteger();
        try (CudaStream side = CudaStream.create(device);
                NativeMemory backing = CudaMemory.allocate(device, 256)) {
            NativeMemory memory =
                    new NativeMemory(backing.address(), 256, Device.gpu(0), freed::incrementAndGet);
            NDArray view = Torch.view(manager, memory, 0, new Shape(64), ScalarType.FLOAT32);
            memory.close();
            assertThrows(IllegalArgumentException.class, () -> side.keepAlive(view, null));
            view.close();
            assertEquals(1, freed.get());
        }
    }
}
