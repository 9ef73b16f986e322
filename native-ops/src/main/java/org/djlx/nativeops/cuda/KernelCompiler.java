/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops.cuda;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import org.djlx.nativeops.NativeLibrary;

/** Compiles kernels for the GPU at hand with NVRTC, and loads them. Safe for use by threads. */
public final class KernelCompiler {

    private final KernelCache cache;

    /**
     * Creates a compiler.
     *
     * @param cache where compiled kernels are kept
     */
    public KernelCompiler(KernelCache cache) {
        this.cache = cache;
    }

    /**
     * Returns kernels, compiled as C++17, loaded onto a GPU.
     *
     * @param device the GPU; the kernels are compiled for {@link CudaDevice#architecture()}
     * @param source the source
     * @param options further options of NVRTC, for example {@code -DWIDTH=16}
     * @return the module, to be closed by the caller
     * @throws UnsatisfiedLinkError if there is no NVRTC; see {@link NativeLibrary#NVRTC}
     * @throws CudaException with NVRTC's messages if they do not compile, or if the driver does not
     *     load them
     */
    public CudaModule load(CudaDevice device, KernelSource source, String... options) {
        return CudaModule.load(device, compile(key(device, source, options)));
    }

    /**
     * Begins to compile, on a thread of its own, kernels that are loaded later, unless they have
     * been compiled already. {@link #load} waits for that, and tells what was wrong.
     *
     * @param device as for {@link #load}
     * @param source likewise
     * @param options likewise
     * @return done when they are compiled, or have turned out not to be right
     * @throws UnsatisfiedLinkError if there is no NVRTC
     */
    public CompletableFuture<Void> prepare(
            CudaDevice device, KernelSource source, String... options) {
        KernelCache.Key key = key(device, source, options);
        if (cache.has(key)) {
            return CompletableFuture.completedFuture(null);
        }
        Executor thread =
                task -> {
                    Thread compiling = new Thread(task, "compile-" + source.name());
                    compiling.setDaemon(true);
                    compiling.start();
                };
        return CompletableFuture.runAsync(() -> compile(key), thread).exceptionally(e -> null);
    }

    private byte[] compile(KernelCache.Key key) {
        return cache.get(key, () -> Nvrtc.compile(key.source(), key.options()));
    }

    private static KernelCache.Key key(CudaDevice device, KernelSource source, String[] options) {
        NativeLibrary.NVRTC.ensureAvailability();
        String architecture = device.architecture();
        List<String> all = new ArrayList<>();
        all.add("--gpu-architecture=" + architecture);
        all.add("--std=c++17");
        all.addAll(List.of(options));
        return new KernelCache.Key(source, all, architecture, Nvrtc.version());
    }
}
