// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import org.djlx.nativeops.host.NativeMemory;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Tag("gpu")
@Timeout(60)
class CudaGraphTest extends StreamFixture {

    @Test
    void replayReadsTheCurrentContentsOfItsMemory() {
        try (NativeMemory memory = CudaMemory.allocate(device, 64);
                CudaStream side = CudaStream.create(device);
                CudaEvent forked = CudaEvent.create(device);
                CudaEvent joined = CudaEvent.create(device)) {
            long from = memory.address();
            long to = from + 32;
            Gpus.write(device, from, new int[16]);
            CudaGraph graph =
                    CudaGraph.capture(
                            stream,
                            () -> {
                                assertTrue(stream.isCapturing());
                                stream.copyAsync(to, from, 8);
                                forked.record(stream);
                                side.waitEvent(forked);
                                side.copyAsync(to + 8, to, 4);
                                joined.record(side);
                                stream.waitEvent(joined);
                            });
            assertFalse(stream.isCapturing());
            assertArrayEquals(new int[16], Gpus.read(device, from, 16), "not run by capturing");
            for (int i = 1; i <= 100; i++) {
                stream.writeValue32(from, i);
                graph.launch(stream);
                stream.synchronize();
                assertArrayEquals(new int[] {i, 0, i}, Gpus.read(device, to, 3));
            }
            graph.close();
            assertThrows(IllegalStateException.class, () -> graph.launch(stream));
        }
    }

    @Test
    void arraysLiveAsLongAsTheGraph() {
        try (NDManager manager = NDManager.newBaseManager(Device.gpu(0), "PyTorch");
                NativeMemory memory = CudaMemory.allocate(device, 16 << 20)) {
            NDArray array = manager.ones(new Shape(4 << 20));
            device.synchronize();
            long address = Torch.dataPointer(array);
            CudaGraph graph =
                    CudaGraph.capture(
                            stream,
                            () -> {
                                stream.copyAsync(memory.address(), address, 16 << 20);
                                stream.keepAlive(array);
                            });
            array.close();
            NDArray next = manager.zeros(new Shape(4 << 20));
            assertFalse(address == Torch.dataPointer(next), "the storage is still held");
            device.synchronize();
            graph.launch(stream);
            graph.close();
            int one = Float.floatToIntBits(1);
            assertEquals(one, Gpus.read(device, memory.address(), 4 << 20)[(4 << 20) - 1]);
            NDArray last = manager.zeros(new Shape(4 << 20));
            assertEquals(address, Torch.dataPointer(last), "the storage is free again");
        }
    }

    /** A hook counts launches and closes. */
    private static final class Counts implements CudaGraph.LaunchHook {
        private int before;
        private int after;
        private int closed;

        @Override
        public void before(CudaStream stream) {
            before++;
        }

        @Override
        public void after(CudaStream stream) {
            after++;
        }

        @Override
        public void close() {
            closed++;
        }
    }

    @Test
    void hookIsCreatedOncePerOwnerAndGraph() {
        Counts counts = new Counts();
        CudaGraph graph =
                CudaGraph.capture(
                        stream,
                        () -> {
                            assertSame(counts, CudaGraph.hook(this, () -> counts));
                            assertSame(counts, CudaGraph.hook(this, Counts::new));
                        });
        graph.launch(stream);
        graph.launch(stream);
        assertEquals(2, counts.before);
        assertEquals(2, counts.after);
        graph.close();
        assertEquals(1, counts.closed);
        assertThrows(IllegalStateException.class, () -> CudaGraph.hook(this, Counts::new));
    }

    @Test
    void failedCapturesLeaveTheStreamUsable() {
        IllegalArgumentException failure = new IllegalArgumentException("mine");
        assertSame(
                failure,
                assertThrows(
                        IllegalArgumentException.class,
                        () ->
                                CudaGraph.capture(
                                        stream,
                                        () -> {
                                            throw failure;
                                        })));
        assertFalse(stream.isCapturing());
        var e =
                assertThrows(
                        CudaException.class, () -> CudaGraph.capture(stream, stream::synchronize));
        assertTrue(e.errorName().startsWith("CUDA_ERROR_STREAM_CAPTURE_"), e.getMessage());
        assertFalse(stream.isCapturing());
        assertThrows(
                IllegalStateException.class,
                () -> CudaGraph.capture(stream, () -> CudaGraph.capture(stream, () -> {}).close()));
        stream.synchronize();
    }
}
