// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import static org.djlx.nativeops.torch.ScalarType.BFLOAT16;
import static org.djlx.nativeops.torch.ScalarType.FLOAT16;
import static org.djlx.nativeops.torch.ScalarType.FLOAT32;

import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.EnumMap;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import org.bytedeco.cuda.cudart.CUmod_st;
import org.bytedeco.cuda.global.cudart;
import org.bytedeco.javacpp.Pointer;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * Compiled kernels, loaded onto a GPU. Close the module after the last work of its kernels; they
 * cannot be launched afterwards. Modules with the same image share one loaded copy in a process, so
 * kernels keep nothing in global variables.
 */
public final class CudaModule extends CudaResource {

    private static final Map<Key, Loaded> ALL = new HashMap<>();

    private final Key key;
    private final Loaded loaded;

    private record Key(int device, ByteBuffer image) {}

    /** The loaded copy that modules with the same image share. */
    private static final class Loaded {

        final CUmod_st module = new CUmod_st();
        int users; // guarded by ALL
        volatile boolean done;

        synchronized int load(ByteBuffer image) {
            if (done) {
                return cudart.CUDA_SUCCESS;
            }
            // PTX is text and must be zero-terminated; other formats contain their size.
            byte[] bytes = Arrays.copyOf(image.array(), image.capacity() + 1);
            try (Pointer terminated = CudaDriver.copy(bytes)) {
                int result = cudart.cuModuleLoadData(module, terminated);
                done = result == cudart.CUDA_SUCCESS;
                return result;
            }
        }
    }

    private CudaModule(CudaDevice device, Key key) {
        super(device);
        this.key = key;
        synchronized (ALL) {
            loaded = ALL.computeIfAbsent(key, k -> new Loaded());
            loaded.users++;
        }
        try {
            create("cuModuleLoadData", () -> loaded.load(key.image));
        } catch (Throwable e) {
            leave();
            throw e;
        }
    }

    /**
     * Loads compiled kernels. If the kernels are not loaded yet, waits for the calling thread's
     * current stream (unless it is being captured), and may wait for the whole GPU.
     *
     * @param image a cubin for its architecture, a fat binary or PTX
     * @return the module; the caller closes it
     * @throws CudaException with {@code CUDA_ERROR_INVALID_IMAGE} if the image has another format,
     *     {@code CUDA_ERROR_NO_BINARY_FOR_GPU} if the image is for other GPUs
     */
    public static CudaModule load(CudaDevice device, byte[] image) {
        if (image.length == 0) {
            throw new IllegalArgumentException("the image is empty");
        }
        Key key = new Key(device.device().getDeviceId(), ByteBuffer.wrap(image.clone()));
        if (!isLoaded(key)) {
            awaitCurrentStream(device);
        }
        return new CudaModule(device, key);
    }

    private static boolean isLoaded(Key key) {
        synchronized (ALL) {
            Loaded loaded = ALL.get(key);
            return loaded != null && loaded.done;
        }
    }

    /**
     * Waits for the calling thread's current stream, to prevent a deadlock. Loading waits for
     * running kernels and blocks other calls for the GPU while it waits. If a kernel of this rank
     * waited for a kernel that another rank on this GPU has not launched yet, neither rank could
     * continue.
     */
    private static void awaitCurrentStream(CudaDevice device) {
        if (!NativeLibrary.LIBTORCH.isAvailable()) {
            return; // Without libtorch there are no ranks.
        }
        try (CudaStream stream =
                CudaStream.wrap(device, Torch.currentCudaStream(device.device()))) {
            if (!stream.isCapturing()) {
                stream.synchronize();
            }
        }
    }

    /**
     * {@return a kernel of this module, valid as long as the module is open} The kernel is loaded
     * eagerly, so launches do not block.
     *
     * @param name the name; the name in the source if the kernel is {@code extern "C"}
     * @throws CudaException with {@code CUDA_ERROR_NOT_FOUND} if the module has no such kernel
     */
    public CudaKernel kernel(String name) {
        return new CudaKernel(this, name);
    }

    /**
     * {@return a kernel that the source may lack for some GPUs; empty if the module has no such
     * kernel}
     */
    public Optional<CudaKernel> findKernel(String name) {
        try {
            return Optional.of(kernel(name));
        } catch (CudaException e) {
            if (e.code() == cudart.CUDA_ERROR_NOT_FOUND) {
                return Optional.empty();
            }
            throw e;
        }
    }

    /**
     * {@return the kernels of an operator, a prefix, by element type: {@code operator_float32},
     * {@code operator_float16} and {@code operator_bfloat16}, those that the module has}
     */
    public Map<ScalarType, CudaKernel> kernels(String operator) {
        Map<ScalarType, CudaKernel> kernels = new EnumMap<>(ScalarType.class);
        for (ScalarType type : List.of(FLOAT32, FLOAT16, BFLOAT16)) {
            findKernel(operator + "_" + type.name().toLowerCase(Locale.ROOT))
                    .ifPresent(kernel -> kernels.put(type, kernel));
        }
        return kernels;
    }

    CUmod_st module() {
        requireOpen();
        return loaded.module;
    }

    /** Releases the loaded copy. Returns whether this was its last user. */
    private boolean leave() {
        synchronized (ALL) {
            boolean last = --loaded.users == 0;
            if (last) {
                ALL.remove(key);
            }
            return last;
        }
    }

    @Override
    void destroy() {
        if (leave()) {
            device().call("cuModuleUnload", () -> cudart.cuModuleUnload(loaded.module));
        }
    }
}
