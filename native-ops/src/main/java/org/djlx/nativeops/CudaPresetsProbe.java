// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops;

import java.io.IOException;
import java.net.MalformedURLException;
import java.net.URL;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.List;
import org.bytedeco.cuda.global.cublas;
import org.bytedeco.cuda.global.cudart;
import org.bytedeco.javacpp.BytePointer;
import org.bytedeco.javacpp.Loader;
import org.bytedeco.javacpp.annotation.Platform;
import org.bytedeco.javacpp.annotation.Properties;

/** Probes JavaCPP's presets for CUDA and cuBLASLt. Both need a working driver. */
final class CudaPresetsProbe {

    private CudaPresetsProbe() {}

    static void cuda() {
        require(NativeLibrary.CUDA);
        try {
            Presets.load();
        } catch (NoClassDefFoundError e) {
            throw LoadedLibraries.linkError(
                    "JavaCPP's CUDA presets are not on the class path; add org.bytedeco:cuda and"
                            + " org.bytedeco:javacpp, each also with the classifier linux-x86_64,"
                            + " in the version for the CUDA that libtorch uses",
                    e);
        } catch (LinkageError e) {
            throw LoadedLibraries.linkError(
                    "JavaCPP's CUDA presets do not load ("
                            + e.getMessage()
                            + "). JavaCPP comes from "
                            + Loader.class.getResource("Loader.class")
                            + ", which must have the presets' version. Add the jars of"
                            + " org.bytedeco:cuda and org.bytedeco:javacpp with"
                            + " the classifier linux-x86_64 to the class path, and CUDA's run-time"
                            + " library of the same major version (libcudart.so.12 or"
                            + " libcudart.so.13) to a folder of LD_LIBRARY_PATH",
                    e);
        }
    }

    static void cublasLt() {
        require(NativeLibrary.CUDA_PRESETS);
        NativeLibrary.LIBTORCH.isAvailable(); // Loads it, so that the presets find its cuBLASLt.
        try {
            Presets.loadCublas();
        } catch (LinkageError e) {
            throw LoadedLibraries.linkError(
                    "JavaCPP's presets for cuBLAS do not load ("
                            + e.getMessage()
                            + "); put libcublas and libcublasLt of the presets' CUDA major version"
                            + " into a folder of LD_LIBRARY_PATH; libtorch ships them",
                    e);
        }
    }

    private static void require(NativeLibrary library) {
        Throwable cause = library.unavailabilityCause();
        if (cause != null) {
            throw LoadedLibraries.linkError(cause.getMessage(), cause);
        }
    }

    /** A separate class: the JVM then loads the presets only when they are needed. */
    private static final class Presets {

        private static final String MEMORY_LIMIT = "org.bytedeco.javacpp.maxphysicalbytes";

        static void load() {
            // By default JavaCPP throws OutOfMemoryError if the process uses more than four times
            // the Java heap. Most of that memory is libtorch's, which has its own limits.
            if (System.getProperty(MEMORY_LIMIT) == null) {
                System.setProperty(MEMORY_LIMIT, "0");
            }
            locked(
                    () -> {
                        useLoaded(org.bytedeco.cuda.presets.cudart.class);
                        Loader.load(cudart.class);
                        // Loads JavaCPP's own library, which is in a separate jar.
                        new BytePointer(1L).close();
                    });
        }

        static void loadCublas() {
            locked(
                    () -> {
                        useLoaded(org.bytedeco.cuda.presets.cublas.class);
                        Loader.load(cublas.class);
                    });
        }

        /**
         * Makes JavaCPP use libraries of CUDA that this process has loaded, usually with libtorch.
         * By default it prefers those of /usr/local/cuda, also if others are loaded already: a
         * second copy takes time and memory.
         */
        private static void useLoaded(Class<?> presets) {
            for (Platform platform : presets.getAnnotation(Properties.class).value()) {
                for (String library : platform.link()) { // such as cublasLt@.13
                    String name = "lib" + library.replace("@", ".so");
                    List<String> loaded = LoadedLibraries.versionsOf(name);
                    if (loaded.size() == 1) {
                        // With # JavaCPP tries no other file. If this one fails, such as in a
                        // second class loader, Loader.load searches as it does by default.
                        Loader.loadLibrary(Loader.class, urls(loaded.get(0)), library + "#");
                    }
                }
            }
        }

        private static URL[] urls(String path) {
            try {
                return new URL[] {Path.of(path).toUri().toURL()};
            } catch (MalformedURLException e) {
                throw new IllegalStateException(e);
            }
        }
    }

    /**
     * Loads a library of JavaCPP under a file lock. JavaCPP copies libraries into a cache on first
     * use. Without the lock, a process could map a file that another process is still writing, and
     * die with SIGBUS.
     */
    static synchronized void locked(Runnable load) {
        try {
            Path lock = Loader.getCacheDir().toPath().resolve("org.djlx.nativeops.lock");
            try (FileChannel file =
                    FileChannel.open(lock, StandardOpenOption.CREATE, StandardOpenOption.WRITE)) {
                // Released when the file is closed.
                file.lock();
                load.run();
            }
        } catch (IOException e) {
            throw LoadedLibraries.linkError("JavaCPP's cache cannot be locked: " + e, e);
        }
    }
}
