// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.djlx.nativeops.cuda.Gpus;
import org.djlx.nativeops.host.InterruptedProbe;
import org.djlx.nativeops.host.MainProcess;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class NativeLibraryTest {

    @Test
    void libtorchIsAvailable() {
        assertNull(NativeLibrary.LIBTORCH.unavailabilityCause());
        assertTrue(NativeLibrary.LIBTORCH.isAvailable());
        NativeLibrary.LIBTORCH.ensureAvailability();
    }

    @ParameterizedTest
    @CsvSource({
        "CUDA, CUDA driver, driver",
        "CUDA_PRESETS, CUDA, driver",
        "NCCL, libnccl.so.2, LD_LIBRARY_PATH",
        "NVRTC, libnvrtc.so.13, LD_LIBRARY_PATH",
        "NVML, libnvidia-ml.so.1, driver"
    })
    void causesSayWhatWasSoughtAndWhatToDo(NativeLibrary library, String sought, String remedy) {
        Throwable cause = library.unavailabilityCause();
        assertEquals(cause == null, library.isAvailable());
        assertSame(cause, library.unavailabilityCause(), "the answer is kept");
        if (cause == null) {
            library.ensureAvailability();
            return;
        }
        assertTrue(cause.getMessage().contains(sought), cause.getMessage());
        assertTrue(cause.getMessage().contains(remedy), cause.getMessage());
        var error = assertThrows(UnsatisfiedLinkError.class, library::ensureAvailability);
        assertSame(cause, error.getCause());
        assertTrue(error.getMessage().startsWith(library + " is not available: "));
        assertTrue(error.getMessage().contains(cause.getMessage()), error.getMessage());
    }

    @Test
    void cudaIsUnavailableWithoutDevices() {
        boolean devices = Files.exists(Path.of("/dev/nvidiactl"));
        assertTrue(devices || !NativeLibrary.CUDA.isAvailable());
        assertEquals(NativeLibrary.CUDA.isAvailable(), CudaProbe.deviceCount() > 0);
    }

    @Test
    void firstFileThatOpensIsTaken() {
        var library = LibraryProbes.open("C", "install it", "libabsent-djlx.so", "libc.so.6");
        assertTrue(library.getFunction("getpid").invokeInt(new Object[0]) > 1);
        var error =
                assertThrows(
                        UnsatisfiedLinkError.class,
                        () -> LibraryProbes.open("X", "do this", "libx-djlx.so", "liby-djlx.so"));
        assertEquals(
                "X was not found: the dynamic loader cannot open libx-djlx.so, liby-djlx.so; do"
                        + " this",
                error.getMessage());
        assertTrue(error.getCause().getMessage().contains("liby-djlx.so"));
    }

    @Test
    void findsLoadedLibraries() {
        NativeLibrary.LIBTORCH.ensureAvailability();
        assertTrue(LoadedLibraries.find("libtorch_cpu.so").endsWith("/libtorch_cpu.so"));
        assertEquals(
                List.of(LoadedLibraries.find("libc.so.6")), LoadedLibraries.versionsOf("libc.so"));
        assertEquals(List.of(), LoadedLibraries.versionsOf("libtorch"));
        var error =
                assertThrows(
                        UnsatisfiedLinkError.class,
                        () -> LoadedLibraries.find("libabsent-djlx.so"));
        assertEquals("libabsent-djlx.so is not loaded in this process", error.getMessage());
    }

    /** What is found out once must not depend on who asks first. */
    @Test
    void anInterruptedThreadMayAskFirst() throws Exception {
        Thread.currentThread().interrupt();
        try {
            assertTrue(LoadedLibraries.find("libjvm.so").endsWith("/libjvm.so"));
        } finally {
            assertTrue(Thread.interrupted());
        }
        String output = MainProcess.run(InterruptedProbe.class);
        assertTrue(output.contains("LIBTORCH: null, interrupted: true"), output);
    }

    /** A second copy costs time and memory, and the order of loading decides which one is used. */
    @Test
    @Tag("gpu")
    void aProcessLoadsEachLibraryOfCudaFromOneFile() throws Exception {
        Gpus.require(1);
        String output = MainProcess.run(LoadedFiles.class);
        List<String> lines = output.lines().filter(line -> line.startsWith("lib")).toList();
        assertEquals(4, lines.size(), output);
        lines.forEach(line -> assertTrue(line.matches(".*: \\[[^,]+]"), line));
    }
}
