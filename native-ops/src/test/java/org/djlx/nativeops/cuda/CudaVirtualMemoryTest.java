// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HexFormat;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.djlx.nativeops.host.Descriptor;
import org.djlx.nativeops.host.DescriptorChannel;
import org.djlx.nativeops.host.LibC;
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
@Timeout(120)
class CudaVirtualMemoryTest {

    private static final int COUNT = 1 << 20;
    private static final long BYTES = (long) COUNT * Integer.BYTES;
    private static final Duration PATIENCE = Duration.ofSeconds(60);

    private CudaDevice one;
    private CudaDevice two;

    @BeforeEach
    void open() {
        Gpus.require(1);
        one = Gpus.open(0);
        assumeTrue(CudaVirtualMemory.isSupported(one), "the GPU cannot share mapped memory");
    }

    @AfterEach
    void close() {
        if (one != null) {
            one.close();
        }
        if (two != null) {
            two.close();
        }
    }

    private void openPeer() {
        Gpus.require(2);
        two = Gpus.open(1);
        assumeTrue(two.canAccessPeer(one), "the GPUs are not linked");
    }

    /** Sizes beside the granularity, which the memory does not show. */
    @Test
    void isReadAndWrittenByCopies() {
        for (int count : new int[] {1, COUNT / 2, COUNT / 2 + 1, COUNT + 3}) {
            long bytes = (long) count * Integer.BYTES;
            try (CudaVirtualMemory virtual = CudaVirtualMemory.allocate(one, List.of(one), bytes);
                    NativeMemory copy = CudaMemory.allocate(one, bytes);
                    CudaStream stream = CudaStream.create(one)) {
                NativeMemory memory = virtual.memory();
                assertEquals(bytes, memory.byteSize());
                assertEquals(Device.gpu(0), memory.device());
                Gpus.write(one, memory.address(), Gpus.range(count, count));
                stream.copyAsync(copy.address(), memory.address(), bytes);
                stream.synchronize();
                assertArrayEquals(Gpus.range(count, count), Gpus.read(one, copy.address(), count));
            }
        }
    }

    @Test
    void viewKeepsTheMapping() {
        CudaVirtualMemory virtual = CudaVirtualMemory.allocate(one, List.of(), BYTES);
        try (NDManager manager = NDManager.newBaseManager(Device.gpu(0), "PyTorch")) {
            NDArray view =
                    Torch.view(manager, virtual.memory(), 64, new Shape(2, 2), ScalarType.FLOAT32);
            virtual.close();
            virtual.close();
            Torch.copy(view, manager.create(new float[] {1, -2, 3.5f, 0}, new Shape(2, 2)));
            TorchInPlace.add(view, view);
            assertArrayEquals(new float[] {2, -4, 7, 0}, view.toFloatArray());
        }
        assertThrows(IllegalStateException.class, virtual::export);
    }

    @Test
    void outlivesItsDevice() {
        CudaDevice other = Gpus.open(0);
        CudaVirtualMemory virtual = CudaVirtualMemory.allocate(other, List.of(), 64);
        other.close();
        Gpus.write(one, virtual.memory().address(), 1, 2, 3);
        assertArrayEquals(new int[] {1, 2, 3}, Gpus.read(one, virtual.memory().address(), 3));
        virtual.close();
    }

    /** Both GPUs use one mapping, by copies and flags, and wait for each other. */
    @Test
    void peersUseTheSameAddress() {
        openPeer();
        try (CudaVirtualMemory virtual =
                        CudaVirtualMemory.allocate(one, List.of(one, two, two), BYTES + 256);
                NativeMemory there = CudaMemory.allocate(two, BYTES);
                CudaStream mine = CudaStream.create(one);
                CudaStream theirs = CudaStream.create(two)) {
            long data = virtual.memory().address();
            long flag = data + BYTES;
            Gpus.write(one, data, Gpus.range(1, COUNT));
            Gpus.write(one, flag, 0, 0);
            Gpus.write(two, there.address(), Gpus.range(-7, COUNT));
            Gpus.waitValue32(mine, flag, 1);
            mine.writeValue32(data, 99);
            mine.writeValue32(flag + 4, 1);
            theirs.copyAsync(data, there.address(), BYTES);
            theirs.writeValue32(flag, 1);
            Gpus.waitValue32(theirs, flag + 4, 1);
            theirs.copyAsync(there.address(), data, BYTES);
            theirs.synchronize();
            mine.synchronize();
            int[] expected = Gpus.range(-7, COUNT);
            expected[0] = 99;
            assertArrayEquals(expected, Gpus.read(two, there.address(), COUNT));
            assertArrayEquals(expected, Gpus.read(one, data, COUNT));
        }
    }

    @Test
    void exportOutlivesTheMapping() {
        CudaVirtualMemory virtual = CudaVirtualMemory.allocate(one, List.of(), BYTES);
        Gpus.write(one, virtual.memory().address(), Gpus.range(3, COUNT));
        CudaVirtualMemory other;
        try (Descriptor descriptor = virtual.export()) {
            virtual.close();
            other = CudaVirtualMemory.open(one, descriptor, BYTES);
        }
        try (other) {
            assertArrayEquals(
                    Gpus.range(3, COUNT), Gpus.read(one, other.memory().address(), COUNT));
        }
    }

    @Test
    void processesShareItOnOneGpu() throws Exception {
        share(0);
    }

    @Test
    void processesShareItBetweenGpus() throws Exception {
        openPeer();
        share(1);
    }

    /** Another process reads what is here, writes to it and raises a flag. */
    private void share(int ordinal) throws Exception {
        byte[] token = {4, 3, 2, 1};
        long flag = BYTES;
        try (CudaVirtualMemory virtual = CudaVirtualMemory.allocate(one, List.of(), BYTES + 256);
                CudaStream stream = CudaStream.create(one)) {
            NativeMemory memory = virtual.memory();
            Gpus.write(one, memory.address(), Gpus.range(11, COUNT));
            Gpus.write(one, memory.address() + flag, 0);
            Gpus.waitValue32(stream, memory.address() + flag, 1);
            Process process =
                    new ProcessBuilder(
                                    System.getProperty("java.home") + "/bin/java",
                                    "-cp",
                                    System.getProperty("java.class.path"),
                                    CudaVirtualMemoryPeer.class.getName(),
                                    HexFormat.of().formatHex(token),
                                    Integer.toString(ordinal),
                                    Integer.toString(COUNT))
                            .redirectError(ProcessBuilder.Redirect.INHERIT)
                            .start();
            try (BufferedReader lines =
                            new BufferedReader(
                                    new InputStreamReader(
                                            process.getInputStream(), StandardCharsets.UTF_8));
                    Descriptor descriptor = virtual.export()) {
                String name = lines.readLine();
                DescriptorChannel.send(name, token, 0, descriptor, PATIENCE);
                String output = lines.lines().collect(Collectors.joining("\n"));
                assertTrue(process.waitFor(60, TimeUnit.SECONDS), output);
                assertEquals(0, process.exitValue(), output);
                assertTrue(output.contains(CudaVirtualMemoryPeer.DONE), output);
            } finally {
                process.destroyForcibly();
                if (!stream.query()) {
                    Gpus.write(one, memory.address() + flag, 1);
                }
            }
            stream.synchronize();
            assertArrayEquals(Gpus.range(-5, COUNT), Gpus.read(one, memory.address(), COUNT));
        }
    }

    @Test
    void outOfMemoryErrorNamesTheSize() {
        var e =
                assertThrows(
                        CudaException.class,
                        () -> CudaVirtualMemory.allocate(one, List.of(), 1L << 50));
        assertEquals("cuMemCreate", e.call());
        assertEquals("CUDA_ERROR_OUT_OF_MEMORY", e.errorName());
    }

    @Test
    void openRefusesDescriptorsOfOtherFiles() {
        Descriptor file = new Descriptor(LibC.memfd_create("not a GPU's", LibC.MFD_CLOEXEC));
        try (file) {
            var e =
                    assertThrows(
                            CudaException.class, () -> CudaVirtualMemory.open(one, file, BYTES));
            assertEquals("cuMemImportFromShareableHandle", e.call());
        }
    }

    /** More than any GPU has, were it not freed, also by what fails half way. */
    @Test
    void closingFreesAllMemoryEvenOfFailedOpens() {
        long bytes = 4L << 30;
        for (int i = 0; i < 128; i++) {
            try (CudaVirtualMemory virtual = CudaVirtualMemory.allocate(one, List.of(), bytes);
                    Descriptor descriptor = virtual.export()) {
                CudaVirtualMemory.open(one, descriptor, bytes).close();
                assertThrows(
                        CudaException.class,
                        () -> CudaVirtualMemory.open(one, descriptor, 2 * bytes));
            }
        }
    }
}
