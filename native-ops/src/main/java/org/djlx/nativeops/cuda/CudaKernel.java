// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import java.lang.ref.Reference;
import java.util.Arrays;
import org.bytedeco.cuda.cudart.CUfunc_st;
import org.bytedeco.cuda.cudart.CUlaunchAttribute;
import org.bytedeco.cuda.cudart.CUlaunchConfig;
import org.bytedeco.cuda.cudart.CUstream_st;
import org.bytedeco.cuda.global.cudart;
import org.bytedeco.javacpp.PointerPointer;
import org.bytedeco.javacpp.SizeTPointer;
import org.djlx.nativeops.host.CallingThread;

/** A kernel of a {@link CudaModule}, valid as long as the module is open. Thread-safe. */
public final class CudaKernel {

    /** The first driver version with cuFuncLoad and cuFuncGetParamInfo, CUDA 12.4. */
    private static final int FIRST_WITH_PARAMETER_INFO = 12040;

    /** The first driver version that captures programmatic dependent launches, CUDA 12.3. */
    private static final int FIRST_WITH_DEPENDENT_NODES = 12030;

    private final CudaModule module;
    private final String name;
    private final String launch; // the call's name in errors
    private final CUfunc_st function = new CUfunc_st();

    private final boolean supportsDependent; // programmatic dependent launch

    /** The size of each parameter in bytes; null if the driver cannot query it. */
    private final int[] parameterSizes;

    CudaKernel(CudaModule module, String name) {
        this.module = module;
        this.name = name;
        this.launch = "cuLaunchKernel of " + name;
        module.call(
                "cuModuleGetFunction of " + name,
                () -> cudart.cuModuleGetFunction(function, module.module(), name));
        int[] version = new int[1];
        CudaDriver.check(cudart.cuDriverGetVersion(version), "cuDriverGetVersion");
        supportsDependent = version[0] >= FIRST_WITH_DEPENDENT_NODES;
        if (version[0] >= FIRST_WITH_PARAMETER_INFO) {
            module.call("cuFuncLoad", () -> cudart.cuFuncLoad(function));
            parameterSizes = readParameterSizes();
        } else {
            // Has the side effect of loading the function.
            maxThreadsPerBlock();
            parameterSizes = null;
        }
    }

    private int[] readParameterSizes() {
        int[] sizes = new int[KernelArguments.MAX_COUNT];
        try (SizeTPointer offset = new SizeTPointer(1);
                SizeTPointer size = new SizeTPointer(1)) {
            for (int i = 0; i < sizes.length; i++) {
                long index = i;
                int result =
                        module.device()
                                .in(() -> cudart.cuFuncGetParamInfo(function, index, offset, size));
                if (result == cudart.CUDA_ERROR_INVALID_VALUE) {
                    return Arrays.copyOf(sizes, i);
                }
                CudaDriver.check(result, "cuFuncGetParamInfo");
                sizes[i] = (int) size.get();
            }
        }
        return sizes;
    }

    public String name() {
        return name;
    }

    /** {@return the maximum number of threads of a block, limited by the kernel's registers} */
    public int maxThreadsPerBlock() {
        int[] threads = new int[1];
        module.call(
                "cuFuncGetAttribute",
                () ->
                        cudart.cuFuncGetAttribute(
                                threads, cudart.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function));
        return threads[0];
    }

    /**
     * {@return how many blocks one SM runs at the same time (occupancy)} Blocks that wait for each
     * other must all be resident: at most this number times {@link
     * CudaAttribute#MULTIPROCESSOR_COUNT}, if nothing else runs.
     */
    public int maxBlocksPerMultiprocessor(int threads, int sharedBytes) {
        int[] blocks = new int[1];
        module.call(
                "cuOccupancyMaxActiveBlocksPerMultiprocessor",
                () ->
                        cudart.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                                blocks, function, threads, sharedBytes));
        return blocks[0];
    }

    /**
     * Allows launches with more than 48 KiB of dynamic shared memory.
     *
     * @throws CudaException with {@code CUDA_ERROR_INVALID_VALUE} if {@code byteSize} exceeds
     *     {@link CudaAttribute#MAX_SHARED_MEMORY_PER_BLOCK}
     */
    public void allowSharedMemory(int byteSize) {
        module.call(
                "cuFuncSetAttribute",
                () ->
                        cudart.cuFuncSetAttribute(
                                function,
                                cudart.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                byteSize));
    }

    /**
     * Prefers the largest part of an SM's memory as shared memory, so that blocks of other kernels
     * fit beside this kernel's.
     */
    public void preferSharedMemory() {
        module.call(
                "cuFuncSetAttribute",
                () ->
                        cudart.cuFuncSetAttribute(
                                function,
                                cudart.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
                                cudart.CU_SHAREDMEM_CARVEOUT_MAX_SHARED));
    }

    /**
     * Launches the kernel on a stream. The kernel's source sets the cluster size.
     *
     * @param arguments the arguments; they are copied and may be changed after the call
     * @throws IllegalArgumentException if the number or sizes of the arguments differ from the
     *     kernel's parameters (checked with CUDA 12.4 and later), or the stream belongs to another
     *     GPU
     */
    public void launch(CudaStream stream, LaunchSize size, KernelArguments arguments) {
        module.device().requireSame(stream.device(), "the stream");
        arguments.requireSizes(parameterSizes, name);
        CUstream_st queue = stream.stream();
        PointerPointer<?> pointers = pointers(arguments);
        module.requireOpen();
        CallingThread thread = CallingThread.get();
        boolean pushed = module.device().enter(thread);
        try {
            CudaDriver.check(launch(size, queue, pointers), launch);
        } finally {
            CudaDriver.leave(thread, pushed);
        }
        // The code above uses only an address, which does not keep the arguments alive.
        Reference.reachabilityFence(arguments);
    }

    private int launch(LaunchSize size, CUstream_st queue, PointerPointer<?> pointers) {
        if (size.cooperative() || size.dependent() && supportsDependent) {
            return launchWithAttributes(size, queue, pointers);
        }
        return cudart.cuLaunchKernel(
                function,
                size.gridX(),
                size.gridY(),
                size.gridZ(),
                size.blockX(),
                size.blockY(),
                size.blockZ(),
                size.sharedBytes(),
                queue,
                pointers,
                (PointerPointer<?>) null);
    }

    private int launchWithAttributes(
            LaunchSize size, CUstream_st queue, PointerPointer<?> pointers) {
        try (CUlaunchAttribute attributes = new CUlaunchAttribute(2);
                CUlaunchConfig config = new CUlaunchConfig()) {
            int count = 0;
            if (size.dependent() && supportsDependent) {
                attributes.position(count++);
                attributes.id(cudart.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
                attributes.value().programmaticStreamSerializationAllowed(1);
            }
            if (size.cooperative()) {
                attributes.position(count++);
                attributes.id(cudart.CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
                attributes.value().cooperative(1);
            }
            config.gridDimX(size.gridX()).gridDimY(size.gridY()).gridDimZ(size.gridZ());
            config.blockDimX(size.blockX()).blockDimY(size.blockY()).blockDimZ(size.blockZ());
            config.sharedMemBytes(size.sharedBytes()).hStream(queue);
            config.attrs(attributes.position(0)).numAttrs(count);
            return cudart.cuLaunchKernelEx(config, function, pointers, (PointerPointer<?>) null);
        }
    }

    /**
     * Returns the arguments as the type whose overload in the presets passes the array itself, not
     * its address.
     */
    private static PointerPointer<?> pointers(KernelArguments arguments) {
        if (arguments.pointers == null) {
            arguments.pointers = CudaDriver.pointers(arguments.address());
        }
        return (PointerPointer<?>) arguments.pointers;
    }

    @Override
    public String toString() {
        return "kernel " + name + " of " + module.device();
    }
}
