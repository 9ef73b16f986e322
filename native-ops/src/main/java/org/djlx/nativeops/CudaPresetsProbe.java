/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops;

import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import org.bytedeco.cuda.global.cudart;
import org.bytedeco.javacpp.BytePointer;
import org.bytedeco.javacpp.Loader;

/** Loads JavaCPP's CUDA presets, once the driver is known to work. */
final class CudaPresetsProbe {

    private CudaPresetsProbe() {}

    static void run() {
        Throwable noDriver = NativeLibrary.CUDA.unavailabilityCause();
        if (noDriver != null) {
            throw LoadedLibraries.linkError(noDriver.getMessage(), noDriver);
        }
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
                            + "); they need the jars with the classifier linux-x86_64 of"
                            + " org.bytedeco:cuda and org.bytedeco:javacpp, and CUDA's run-time"
                            + " library of their major version (libcudart.so.12 or"
                            + " libcudart.so.13) in a folder of LD_LIBRARY_PATH",
                    e);
        }
    }

    /** A class of its own, so that nothing of the presets is touched before it is wanted. */
    private static final class Presets {

        private static final String MEMORY_LIMIT = "org.bytedeco.javacpp.maxphysicalbytes";

        static void load() {
            // Unless told, JavaCPP lets the process have four times the Java heap, and throws
            // OutOfMemoryError beyond. libtorch, whose memory that is, has its own limits.
            if (System.getProperty(MEMORY_LIMIT) == null) {
                System.setProperty(MEMORY_LIMIT, "0");
            }
            locked(
                    () -> {
                        Loader.load(cudart.class);
                        // From JavaCPP's own library, which is in a jar of its own.
                        new BytePointer(1L).close();
                    });
        }
    }

    /**
     * Runs what loads a library of JavaCPP, which it copies into a cache when first used. Where two
     * processes do so at once, one can map a file that the other is writing, and die with SIGBUS.
     */
    static synchronized void locked(Runnable load) {
        try {
            Path lock = Loader.getCacheDir().toPath().resolve("org.djlx.nativeops.lock");
            try (FileChannel file =
                    FileChannel.open(lock, StandardOpenOption.CREATE, StandardOpenOption.WRITE)) {
                // Held until the file is closed.
                file.lock();
                load.run();
            }
        } catch (IOException e) {
            throw LoadedLibraries.linkError("JavaCPP's cache cannot be locked: " + e, e);
        }
    }
}
