// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Supplier;
import java.util.stream.Stream;
import org.djlx.nativeops.NativeLibrary;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class GpuRatesTest {

    @TempDir Path directory;

    private final AtomicInteger measured = new AtomicInteger();

    private GpuRates rates(KernelCache cache, String gpu, int multiprocessors) {
        Supplier<double[]> measure =
                () -> new double[] {600.25 + measured.incrementAndGet(), 3000.5};
        return GpuRates.cached(cache, gpu, multiprocessors, measure);
    }

    @Test
    void aKindOfGpuIsMeasuredOnce() throws IOException {
        KernelCache cache = new KernelCache(directory);
        GpuRates first = rates(cache, "NVIDIA H100", 132);
        assertEquals(new GpuRates("NVIDIA H100", 132, 601.25, 3000.5), first);
        assertEquals(first, rates(cache, "NVIDIA H100", 132));
        assertEquals(first, rates(new KernelCache(directory), "NVIDIA H100", 132));
        assertEquals(1, measured.get());
        assertEquals(602.25, rates(cache, "NVIDIA H100", 114).teraflops());
        assertEquals(603.25, rates(cache, "NVIDIA A100", 132).teraflops());
        try (Stream<Path> files = Files.list(directory)) {
            List<Path> found = files.filter(file -> !file.toString().endsWith(".lock")).toList();
            assertEquals(3, found.size());
            for (Path file : found) {
                assertTrue(file.getFileName().toString().startsWith("rates-"), found::toString);
                Files.writeString(file, "damaged");
            }
        }
        assertEquals(604.25, rates(new KernelCache(directory), "NVIDIA A100", 132).teraflops());
    }

    @Test
    void aFailureIsNotCached() {
        KernelCache cache = new KernelCache(directory);
        Supplier<double[]> failing =
                () -> {
                    throw new CudaException("cuMemAlloc", "CUDA_ERROR_OUT_OF_MEMORY", 2, "none");
                };
        assertThrows(CudaException.class, () -> GpuRates.cached(cache, "GPU", 1, failing));
        assertEquals(601.25, rates(cache, "GPU", 1).teraflops());
    }

    @Test
    @Tag("gpu")
    void ratesOfThisGpu() {
        Gpus.require(1);
        Throwable cause = NativeLibrary.CUBLASLT.unavailabilityCause();
        Assumptions.assumeTrue(cause == null, () -> "cuBLASLt: " + cause);
        try (CudaDevice device = Gpus.open(0)) {
            GpuRates rates = GpuRates.of(device).orElseThrow();
            System.out.println(rates);
            assertEquals(device.name(), rates.gpu());
            assertTrue(rates.teraflops() > 1 && rates.teraflops() < 1e5, rates::toString);
            assertTrue(rates.gigabytesPerSecond() > 10, rates::toString);
            assertTrue(rates.gigabytesPerSecond() < 1e5, rates::toString);
            assertEquals(rates, GpuRates.of(device).orElseThrow());
        }
    }
}
