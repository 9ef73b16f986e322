// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.FileTime;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.stream.IntStream;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.host.NativeMemory;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

@Tag("gpu")
@Timeout(60)
class CudaKernelTest extends StreamFixture {

    private static final KernelSource SCALE =
            KernelSource.ofResource(NativeLibrary.class, "scale.cu");

    @TempDir Path cache;

    @BeforeEach
    void requireNvrtc() {
        assumeTrue(
                NativeLibrary.NVRTC.isAvailable(),
                () -> NativeLibrary.NVRTC.unavailabilityCause().getMessage());
    }

    private CudaModule load() {
        return new KernelCompiler(new KernelCache(cache)).load(device, SCALE);
    }

    /** Runs both kernels and checks what they computed. */
    private void requireWorking(CudaModule module) {
        int count = 1000;
        try (NativeMemory memory = CudaMemory.allocate(device, 2L * count * Float.BYTES)) {
            long in = memory.address();
            long out = in + (long) count * Float.BYTES;
            int[] bits = new int[count];
            Arrays.setAll(bits, i -> Float.floatToIntBits(i));
            Gpus.write(device, in, bits);
            LaunchSize size = LaunchSize.of(3, 128);
            KernelArguments arguments = new KernelArguments();
            module.kernel("scale")
                    .launch(stream, size, arguments.addStruct(in, out).add(count).add(2.5));
            module.kernel("add")
                    .launch(stream, size, arguments.clear().add(out).add(count).add(-1f));
            stream.synchronize();
            int[] expected = new int[count];
            Arrays.setAll(expected, i -> Float.floatToIntBits(i * 2.5f - 1));
            assertArrayEquals(expected, Gpus.read(device, out, count));
        }
    }

    private Path cached() throws IOException {
        try (var files = Files.list(cache)) {
            List<Path> all = files.toList();
            assertEquals(1, all.size(), all::toString);
            return all.get(0);
        }
    }

    @Test
    void compilesCachesAndLaunches() throws IOException {
        try (CudaModule module = load()) {
            requireWorking(module);
        }
        FileTime past = FileTime.fromMillis(1000);
        Files.setLastModifiedTime(cached(), past);
        try (CudaModule module = load()) {
            requireWorking(module);
        }
        assertEquals(past, Files.getLastModifiedTime(cached()), "from the cache");
        byte[] good = Files.readAllBytes(cached());
        byte[] bad = good.clone();
        bad[bad.length / 2] ^= 0x10;
        Files.write(cached(), bad);
        try (CudaModule module = load()) {
            requireWorking(module);
        }
        assertArrayEquals(good, Files.readAllBytes(cached()), "compiled again");
    }

    @Test
    void compilesOnAThreadOfItsOwn() throws IOException {
        KernelCompiler compiler = new KernelCompiler(new KernelCache(cache));
        compiler.prepare(device, SCALE).join();
        FileTime past = FileTime.fromMillis(1000);
        Files.setLastModifiedTime(cached(), past);
        try (CudaModule module = load()) {
            requireWorking(module);
        }
        assertEquals(past, Files.getLastModifiedTime(cached()), "not compiled again");
        Files.delete(cached());
        KernelCompiler other = new KernelCompiler(new KernelCache(cache));
        CompletableFuture<Void> end = other.prepare(device, SCALE);
        try (CudaModule module = other.load(device, SCALE)) {
            requireWorking(module);
        }
        end.join();
    }

    @Test
    void compilationErrorHasTheLogOfNvrtc() {
        KernelSource broken =
                new KernelSource(
                        "broken.cu",
                        "extern \"C\" __global__ void k() { undeclared = 1; }",
                        Map.of());
        KernelCompiler compiler = new KernelCompiler(new KernelCache(cache));
        compiler.prepare(device, broken).join(); // Who loads them is told.
        var e = assertThrows(CudaException.class, () -> compiler.load(device, broken));
        assertEquals("nvrtcCompileProgram", e.call());
        assertEquals("NVRTC_ERROR_COMPILATION", e.errorName());
        assertTrue(e.getMessage().contains("broken.cu(1): error"), e.getMessage());
        assertTrue(e.getMessage().contains("\"undeclared\""), e.getMessage());
        var option =
                assertThrows(
                        CudaException.class,
                        () ->
                                new KernelCompiler(new KernelCache(cache))
                                        .load(device, SCALE, "--no-such-option"));
        assertEquals("NVRTC_ERROR_INVALID_OPTION", option.errorName());
        assertTrue(option.getMessage().contains("no-such-option"), option.getMessage());
    }

    @Test
    void wrongLaunchesAreRefused() {
        try (CudaModule module = load()) {
            CudaKernel kernel = module.kernel("add");
            assertEquals("add", kernel.name());
            assertEquals("kernel add of gpu(0)", kernel.toString());
            KernelArguments arguments = new KernelArguments().add(0L).add(0);
            LaunchSize size = LaunchSize.of(1, 32);
            var count =
                    assertThrows(
                            IllegalArgumentException.class,
                            () -> kernel.launch(stream, size, arguments));
            assertEquals("add takes 3 arguments, not 2", count.getMessage());
            arguments.add(1.0);
            assertThrows(
                    IllegalArgumentException.class, () -> kernel.launch(stream, size, arguments));
            arguments.clear().add(0L).add(0).add(1f);
            var e =
                    assertThrows(
                            CudaException.class,
                            () -> kernel.launch(stream, LaunchSize.of(1, 2048), arguments));
            assertEquals("cuLaunchKernel of add", e.call());
            assertEquals("CUDA_ERROR_INVALID_VALUE", e.errorName());
            int resident =
                    kernel.maxBlocksPerMultiprocessor(1024, 0)
                            * device.attribute(CudaAttribute.MULTIPROCESSOR_COUNT);
            kernel.launch(stream, LaunchSize.of(resident, 1024), arguments);
            int most = device.attribute(CudaAttribute.MAX_SHARED_MEMORY_PER_BLOCK);
            kernel.allowSharedMemory(most);
            kernel.launch(stream, size.withShared(most), arguments);
            assertThrows(CudaException.class, () -> kernel.allowSharedMemory(most + 1));
            assertTrue(kernel.maxThreadsPerBlock() >= 32);
            stream.synchronize();
            var absent = assertThrows(CudaException.class, () -> module.kernel("absent"));
            assertEquals("CUDA_ERROR_NOT_FOUND", absent.errorName());
        }
    }

    @Test
    void kernelsThatTheGpuCannotRunAreNotFound() {
        KernelSource source = KernelSource.ofResource(NativeLibrary.class, "reduce/reduce.cu");
        try (CudaModule module = new KernelCompiler(new KernelCache(cache)).load(device, source)) {
            assertEquals(Optional.empty(), module.findKernel("absent"));
            assertEquals(
                    "reduce_float16", module.findKernel("reduce_float16").orElseThrow().name());
            assertEquals(
                    device.attribute(CudaAttribute.COMPUTE_CAPABILITY_MAJOR) >= 8,
                    module.findKernel("reduce_bfloat16").isPresent());
        }
    }

    @Test
    void modulesOfTheSameKernelsAreClosedOneByOne() throws Exception {
        List<CudaModule> modules = IntStream.range(0, 8).parallel().mapToObj(i -> load()).toList();
        for (CudaModule module : modules) {
            requireWorking(module);
            module.close();
            assertThrows(IllegalStateException.class, () -> module.kernel("add"));
            module.close();
        }
        try (CudaModule again = load()) {
            requireWorking(again);
        }
    }

    @Test
    void closedModulesAreRefused() {
        CudaModule module = load();
        CudaKernel kernel = module.kernel("add");
        module.close();
        KernelArguments arguments = new KernelArguments().add(0L).add(0).add(1f);
        assertThrows(
                IllegalStateException.class,
                () -> kernel.launch(stream, LaunchSize.of(1, 32), arguments));
        assertThrows(IllegalStateException.class, () -> module.kernel("add"));
        var image =
                assertThrows(
                        CudaException.class,
                        () -> CudaModule.load(device, new byte[] {1, 2, 3, 4}));
        assertEquals("cuModuleLoadData", image.call());
        assertThrows(IllegalArgumentException.class, () -> CudaModule.load(device, new byte[0]));
    }

    /** With a module that loads lazily, this launch would wait for the stream that waits. */
    @Test
    void firstLaunchDoesNotWaitForOtherStreams() {
        try (CudaModule module = load();
                NativeMemory memory = CudaMemory.allocate(device, 4);
                CudaStream held = CudaStream.create(device);
                HostFlag flag = new HostFlag(device)) {
            CudaKernel kernel = module.kernel("add");
            KernelArguments arguments = new KernelArguments().add(memory.address()).add(1).add(2f);
            stream.memsetAsync(memory.address(), (byte) 0, 4);
            flag.holdUp(held);
            kernel.launch(stream, LaunchSize.of(1, 32), arguments);
            stream.synchronize();
            assertEquals(false, held.query());
            flag.raise();
            held.synchronize();
            assertEquals(Float.floatToIntBits(2), Gpus.read(device, memory.address(), 1)[0]);
        }
    }
}
