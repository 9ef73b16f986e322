// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeFalse;

import ai.djl.Device;
import ai.djl.engine.EngineException;
import java.io.File;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Collectors;
import org.djlx.nativeops.NativeLibrary;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** What those see who have no GPU, or did not ask for the CUDA presets. */
@Timeout(120)
class CudaUnavailableTest {

    @Test
    void refusesDevicesThatAreNotOneGpu() {
        assertThrows(IllegalArgumentException.class, () -> CudaDevice.open(null));
        assertThrows(IllegalArgumentException.class, () -> CudaDevice.open(Device.cpu()));
        assertThrows(
                IllegalArgumentException.class,
                () -> CudaDevice.open(new Device.MultiDevice("gpu", 0, 2)));
    }

    @Test
    void argumentsOfMappedMemoryAreChecked() {
        assertThrows(
                IllegalArgumentException.class,
                () -> CudaVirtualMemory.allocate(null, List.of(), 1));
        assertThrows(
                IllegalArgumentException.class, () -> CudaVirtualMemory.allocate(null, null, 1));
        assertThrows(
                IllegalArgumentException.class,
                () -> CudaVirtualMemory.allocate(null, List.of(), 0));
        assertThrows(IllegalArgumentException.class, () -> CudaVirtualMemory.open(null, null, 1));
    }

    @Test
    void presetsAreUnavailableForTheCauseOfTheDriver() {
        assumeFalse(NativeLibrary.CUDA.isAvailable());
        var e = assertThrows(UnsatisfiedLinkError.class, () -> CudaDevice.open(Device.gpu(0)));
        assertTrue(e.getMessage().startsWith("CUDA_PRESETS is not available: "), e.getMessage());
        assertTrue(e.getMessage().contains("the CUDA driver"), e.getMessage());
        assertSame(
                NativeLibrary.CUDA.unavailabilityCause(),
                NativeLibrary.CUDA_PRESETS.unavailabilityCause().getCause());
        assertEquals(0, CudaDevice.count());
    }

    @Test
    void topologyIsUnknownWithoutNvml() {
        assumeFalse(NativeLibrary.NVML.isAvailable());
        GpuTopology topology = GpuTopology.queryBus(List.of("0000:01:00.0", "0000:02:00.0"));
        assertEquals(GpuTopology.Kind.OTHER, topology.kind());
        assertTrue(topology.summary().contains("NVML is not available"), topology.summary());
        assertThrows(IllegalArgumentException.class, () -> GpuTopology.query(List.of()));
    }

    @Test
    void exceptionsNameCallAndError() {
        CudaException e = new CudaException("cuMemAlloc", "CUDA_ERROR_X", 2, "no memory");
        assertEquals("cuMemAlloc failed with CUDA_ERROR_X (2): no memory", e.getMessage());
        assertEquals("cuMemAlloc", e.call());
        assertEquals("CUDA_ERROR_X", e.errorName());
        assertEquals(2, e.code());
        assertTrue(EngineException.class.isInstance(e));
    }

    @Test
    void classesLoadWithoutLoadingThePresets() throws Exception {
        assumeFalse(NativeLibrary.CUDA.isAvailable());
        String output = probe(System.getProperty("java.class.path"));
        assertTrue(output.contains("CUDA_PRESETS is not available"), output);
        assertTrue(output.contains("org.djlx.nativeops.cuda.CudaStream "), output);
        assertFalse(output.contains("org.bytedeco"), output);
    }

    @Test
    void classesLoadWithoutThePresetsOnTheClassPath() throws Exception {
        String without =
                Arrays.stream(System.getProperty("java.class.path").split(File.pathSeparator))
                        .filter(entry -> !entry.contains("bytedeco") && !entry.contains("javacpp"))
                        .filter(entry -> !new File(entry).getName().startsWith("cuda-"))
                        .collect(Collectors.joining(File.pathSeparator));
        String output = probe(without);
        assertTrue(output.contains("CUDA_PRESETS is not available"), output);
        assertFalse(output.contains("NoClassDefFoundError:"), output);
    }

    /**
     * Runs {@link CudaUnavailableProbe} with a class path, and returns what it and the JVM print.
     */
    private static String probe(String classPath) throws IOException, InterruptedException {
        String java = System.getProperty("java.home") + "/bin/java";
        Process process =
                new ProcessBuilder(
                                java,
                                "-Xshare:off",
                                "-Xlog:class+load:stdout",
                                "-cp",
                                classPath,
                                CudaUnavailableProbe.class.getName())
                        .redirectErrorStream(true)
                        .start();
        String output = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        String relevant =
                output.lines()
                        .filter(line -> !line.contains("source: jrt:") && !line.contains("jar:"))
                        .filter(line -> line.contains("djlx") || line.contains("bytedeco"))
                        .collect(Collectors.joining("\n"));
        assertEquals(0, process.waitFor(), output);
        return relevant + "\n" + CudaUnavailableProbe.printed(output);
    }
}
