// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import org.djlx.nativeops.host.NativeCalls;
import org.djlx.nativeops.host.NativeMemory;
import org.djlx.nativeops.torch.CudaStreamGuard;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Tag("gpu")
@Timeout(60)
class CudaStreamTest extends StreamFixture {

    private static final int COUNT = 1 << 20;
    private static final long BYTES = (long) COUNT * Integer.BYTES;

    @Test
    void deviceTellsItsNameIdsAndAttributes() {
        assertEquals(Device.gpu(0), device.device());
        assertFalse(device.name().isEmpty());
        assertTrue(device.pciBusId().matches("[0-9a-fA-F]+:[0-9a-fA-F]+:[0-9a-fA-F]+\\.0"));
        assertTrue(device.uuid().matches("[0-9a-f]{32}"));
        assertNotEquals("0".repeat(32), device.uuid());
        assertTrue(device.attribute(CudaAttribute.MULTIPROCESSOR_COUNT) > 0);
        assertTrue(device.architecture().matches("sm_[0-9]+a?"), device.architecture());
        assertTrue(device.highestStreamPriority() <= 0);
        assertFalse(device.canAccessPeer(device));
        device.enablePeerAccess(device);
        var e =
                assertThrows(
                        IllegalArgumentException.class, () -> CudaDevice.open(Device.gpu(999)));
        assertTrue(e.getMessage().contains("gpu(999) does not exist"), e.getMessage());
    }

    @Test
    @SuppressWarnings("try") // guards are not named in the body
    void aHeldStreamIsReadOnce() {
        try (NativeMemory memory = CudaMemory.allocate(device, 4);
                CurrentStreams streams = new CurrentStreams(device);
                CurrentStreams others = new CurrentStreams(device);
                CudaStream side = CudaStream.create(device)) {
            CudaStream before = streams.get();
            try (CurrentStreams.Scope scope = streams.hold()) {
                CudaStream held = scope.stream();
                assertEquals(before.handle(), held.handle());
                NativeCalls start = NativeCalls.ofThread();
                assertSame(held, streams.get());
                assertSame(held, others.get());
                assertFalse(held.isCapturing());
                try (CurrentStreams.Scope nested = others.hold()) {
                    assertSame(held, nested.stream());
                }
                assertEquals(start, NativeCalls.ofThread());
                try (CudaStreamGuard guard =
                        Torch.cudaStreamGuard(device.device(), side.handle())) {
                    assertEquals(side.handle(), streams.get().handle());
                    try (CurrentStreams.Scope inner = others.hold()) {
                        assertEquals(side.handle(), inner.stream().handle());
                    }
                }
                assertSame(held, streams.get());
            }
            try (CudaStreamGuard guard = Torch.cudaStreamGuard(device.device(), side.handle())) {
                CudaGraph.capture(
                                side,
                                () -> {
                                    try (CurrentStreams.Scope scope = streams.hold()) {
                                        assertTrue(scope.stream().isCapturing());
                                        side.memsetAsync(memory.address(), (byte) 1, 4);
                                    }
                                })
                        .close();
                assertFalse(streams.get().isCapturing());
            }
        }
    }

    @Test
    void copiesAndFillsMemory() {
        try (NativeMemory one = CudaMemory.allocate(device, BYTES);
                NativeMemory two = CudaMemory.allocate(device, BYTES)) {
            Gpus.write(device, one.address(), Gpus.range(3, COUNT));
            stream.memsetAsync(two.address(), (byte) 1, BYTES);
            stream.copyAsync(two.address() + 8, one.address(), BYTES - 8);
            stream.copyAsync(two.address(), one.address(), 0);
            stream.synchronize();
            int[] values = Gpus.read(device, two.address(), COUNT);
            assertEquals(0x01010101, values[0]);
            assertEquals(0x01010101, values[1]);
            assertEquals(3, values[2]);
            assertEquals(COUNT, values[COUNT - 1]);
        }
    }

    @Test
    void closedStreamsAreReusedOnceTheirWorkIsComplete() {
        CudaStream first = CudaStream.create(device);
        long handle = first.handle();
        first.close();
        CudaStream second = CudaStream.create(device);
        assertEquals(handle, second.handle());
        try (HostFlag flag = new HostFlag(device);
                CudaStream third = CudaStream.create(device)) {
            assertNotEquals(handle, third.handle());
            flag.holdUp(second);
            second.close();
            // It may have the handle of the destroyed stream, but not its work.
            try (CudaStream fourth = CudaStream.create(device)) {
                assertTrue(fourth.query());
            }
        }
    }

    @Test
    void eventsOrderStreams() {
        int urgent = device.highestStreamPriority();
        try (NativeMemory memory = CudaMemory.allocate(device, 4);
                CudaStream other = CudaStream.create(device, urgent);
                CudaEvent event = CudaEvent.create(device);
                HostFlag flag = new HostFlag(device)) {
            assertTrue(event.query(), "not recorded");
            flag.holdUp(stream);
            stream.writeValue32(memory.address(), 5);
            event.record(stream);
            other.waitEvent(event);
            other.memsetAsync(memory.address(), (byte) 0, 2);
            assertFalse(event.query());
            assertFalse(stream.query());
            assertFalse(other.query());
            flag.raise();
            event.synchronize();
            assertTrue(event.query());
            other.synchronize();
            assertTrue(stream.query());
            assertArrayEquals(new int[] {0}, Gpus.read(device, memory.address(), 1));
        }
    }

    @Test
    void waitCountsOnPastTheLargestValue() {
        try (HostFlag flag = new HostFlag(device);
                HostFlag done = new HostFlag(device)) {
            Gpus.waitValue32(stream, flag.address(), Integer.MAX_VALUE);
            assertFalse(stream.query());
            stream.writeValue32(done.address(), 7);
            // Six steps past MAX_VALUE, though smaller as a signed number.
            try (CudaStream setter = CudaStream.create(device)) {
                setter.writeValue32(flag.address(), Integer.MIN_VALUE + 5);
                setter.synchronize();
            }
            stream.synchronize();
            assertEquals(7, done.value());
        }
    }

    @Test
    void eventsMeasureTime() {
        try (NativeMemory memory = CudaMemory.allocate(device, 64 << 20);
                CudaEvent start = CudaEvent.createTiming(device);
                CudaEvent end = CudaEvent.createTiming(device);
                CudaEvent untimed = CudaEvent.create(device)) {
            start.record(stream);
            for (int i = 0; i < 10; i++) {
                stream.memsetAsync(memory.address(), (byte) i, memory.byteSize());
            }
            end.record(stream);
            untimed.record(stream);
            end.synchronize();
            float millis = end.elapsedMillisSince(start);
            assertTrue(millis > 0.01 && millis < 1000, "took " + millis + " ms");
            stream.synchronize();
            var e = assertThrows(CudaException.class, () -> untimed.elapsedMillisSince(start));
            assertEquals("cuEventElapsedTime", e.call());
            assertEquals("CUDA_ERROR_INVALID_HANDLE", e.errorName());
            assertEquals(400, e.code());
        }
    }

    @Test
    void worksFromAThreadThatKnowsNoCuda() throws InterruptedException {
        try (NativeMemory memory = CudaMemory.allocate(device, 4)) {
            Thread thread =
                    new Thread(
                            () -> {
                                stream.writeValue32(memory.address(), 9);
                                stream.synchronize();
                            });
            thread.start();
            thread.join();
            assertArrayEquals(new int[] {9}, Gpus.read(device, memory.address(), 1));
        }
    }

    @Test
    void sharesTheStreamOfLibtorch() {
        try (NDManager manager = NDManager.newBaseManager(Device.gpu(0), "PyTorch");
                NativeMemory memory = CudaMemory.allocate(device, 16);
                CudaStream own = CudaStream.wrap(device, Torch.currentCudaStream(Device.gpu(0)))) {
            assertEquals(Torch.currentCudaStream(Device.gpu(0)), own.handle());
            NDArray array = manager.ones(new Shape(4)).mul(3);
            own.copyAsync(memory.address(), Torch.dataPointer(array), 16);
            own.synchronize();
            int three = Float.floatToIntBits(3);
            assertArrayEquals(
                    new int[] {three, three, three, three}, Gpus.read(device, memory.address(), 4));
            CudaStreamGuard guard = Torch.cudaStreamGuard(Device.gpu(0), stream.handle());
            assertEquals(stream.handle(), Torch.currentCudaStream(Device.gpu(0)));
            array.muli(2);
            guard.close();
            stream.copyAsync(memory.address(), Torch.dataPointer(array), 16);
            stream.synchronize();
            assertEquals(Float.floatToIntBits(6), Gpus.read(device, memory.address(), 1)[0]);
        }
    }

    @Test
    void wrongUseIsRefused() {
        assertThrows(IllegalArgumentException.class, () -> stream.writeValue32(0, 1));
        assertThrows(IllegalArgumentException.class, () -> stream.writeValue32(6, 1));
        assertThrows(IllegalArgumentException.class, () -> stream.copyAsync(4, 4, -1));
        assertThrows(IllegalArgumentException.class, () -> stream.memsetAsync(4, (byte) 0, -1));
        CudaStream closed = CudaStream.create(device);
        closed.close();
        closed.close();
        var e = assertThrows(IllegalStateException.class, closed::synchronize);
        assertEquals("a CudaStream of gpu(0) is closed", e.getMessage());
        assertThrows(IllegalStateException.class, closed::handle);
        assertThrows(IllegalStateException.class, closed::query);
        CudaDevice device = Gpus.open(0);
        CudaEvent event = CudaEvent.create(device);
        device.close();
        device.close();
        event.record(stream);
        event.close();
        assertThrows(IllegalStateException.class, () -> CudaStream.create(device));
        assertThrows(IllegalStateException.class, device::makeCurrent);
    }

    @Test
    void badAddressesAreNamed() {
        var e = assertThrows(CudaException.class, () -> stream.copyAsync(16, 32, 64));
        assertEquals("cuMemcpyDtoDAsync", e.call());
        assertEquals("CUDA_ERROR_INVALID_VALUE", e.errorName());
        assertTrue(
                e.getMessage()
                        .startsWith("cuMemcpyDtoDAsync failed with CUDA_ERROR_INVALID_VALUE (1)"),
                e.getMessage());
    }
}
