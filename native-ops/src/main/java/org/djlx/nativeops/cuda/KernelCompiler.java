// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import org.djlx.nativeops.NativeLibrary;

/** Compiles kernels with NVRTC for a GPU, and loads them. Thread-safe. */
public final class KernelCompiler {

    private final KernelCache cache;

    public KernelCompiler(KernelCache cache) {
        this.cache = cache;
    }

    /**
     * Compiles kernels as C++17 or takes them from the cache, then loads them onto a GPU.
     *
     * @param device the GPU; the kernels are compiled for {@link CudaDevice#architecture()}
     * @param options further options of NVRTC, for example {@code -DWIDTH=16}
     * @return the module; the caller closes it
     * @throws UnsatisfiedLinkError if {@link NativeLibrary#NVRTC} is not available
     * @throws CudaException with NVRTC's log if the source does not compile, or if the driver
     *     cannot load the kernels
     */
    public CudaModule load(CudaDevice device, KernelSource source, String... options) {
        return CudaModule.load(device, compile(key(device, source, options)));
    }

    /**
     * Starts to compile kernels on a new thread, unless they are cached. {@link #load} waits for
     * the compilation, and throws its errors.
     *
     * @return a future that completes normally after the compilation, even if the compilation fails
     * @throws UnsatisfiedLinkError if {@link NativeLibrary#NVRTC} is not available
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
