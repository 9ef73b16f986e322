// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import ai.djl.Device;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.function.IntSupplier;
import org.bytedeco.cuda.cudart.CUctx_st;
import org.bytedeco.cuda.cudart.CUuuid;
import org.bytedeco.cuda.global.cudart;
import org.bytedeco.javacpp.SizeTPointer;
import org.djlx.nativeops.CudaProbe;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.host.CallingThread;
import org.djlx.nativeops.host.NativeMemory;

/**
 * A GPU and its primary context, shared with libtorch, NCCL and the CUDA runtime.
 *
 * <p>The context is retained from {@link #open} until this object and everything created with it
 * (streams, events, memory, modules, graphs) is closed. Methods of this package restore the calling
 * thread's current context, except {@code makeCurrent}. No method requires a current context, but
 * many calls are faster within {@link CurrentStreams#hold}. Thread-safe.
 *
 * <p><b>Errors.</b> Failures of the driver are {@link CudaException}s; using a closed object throws
 * an {@link IllegalStateException}.
 */
public final class CudaDevice implements AutoCloseable {

    private static final int UUID_BYTES = 16;
    private static final int NAME_BYTES = 256;

    private final int ordinal;
    final CUctx_st context = new CUctx_st();

    private int references = 1;
    private volatile boolean closed;

    private CudaDevice(int ordinal) {
        this.ordinal = ordinal;
        CudaDriver.check(
                cudart.cuDevicePrimaryCtxRetain(context, ordinal), "cuDevicePrimaryCtxRetain");
    }

    /**
     * Opens a GPU.
     *
     * @return the GPU; the caller closes it
     * @throws UnsatisfiedLinkError if {@link NativeLibrary#CUDA_PRESETS} is not available
     * @throws IllegalArgumentException if the device is not a single GPU, or does not exist
     */
    public static CudaDevice open(Device device) {
        NativeMemory.deviceType(device);
        if (!device.isGpu()) {
            throw new IllegalArgumentException("the device is not a GPU: " + device);
        }
        NativeLibrary.CUDA_PRESETS.ensureAvailability();
        int count = CudaProbe.deviceCount();
        if (device.getDeviceId() >= count) {
            throw new IllegalArgumentException(
                    device + " does not exist: CUDA shows " + count + " GPUs to this process");
        }
        return new CudaDevice(device.getDeviceId());
    }

    /**
     * {@return how many GPUs this process can use; 0 if {@link NativeLibrary#CUDA} is not
     * available}
     */
    public static int count() {
        return NativeLibrary.CUDA.isAvailable() ? CudaProbe.deviceCount() : 0;
    }

    /** {@return the GPU as a DJL device} */
    public Device device() {
        return Device.gpu(ordinal);
    }

    /** {@return the name, for example {@code NVIDIA H200}} */
    public String name() {
        byte[] name = new byte[NAME_BYTES];
        CudaDriver.check(cudart.cuDeviceGetName(name, name.length, ordinal), "cuDeviceGetName");
        return text(name);
    }

    /**
     * {@return the PCI bus id as domain:bus:device.function, for example {@code 0000:1b:00.0}; the
     * same in all processes of the host}
     */
    public String pciBusId() {
        byte[] id = new byte[NAME_BYTES];
        CudaDriver.check(cudart.cuDeviceGetPCIBusId(id, id.length, ordinal), "cuDeviceGetPCIBusId");
        return text(id);
    }

    /**
     * {@return the UUID as 32 hexadecimal digits; the same in all processes of the host} With the
     * presets of CUDA 13, slices of a GPU (MIG) have UUIDs of their own.
     */
    public String uuid() {
        try (CUuuid uuid = new CUuuid()) {
            CudaDriver.check(cudart.cuDeviceGetUuid(uuid, ordinal), "cuDeviceGetUuid");
            byte[] bytes = new byte[UUID_BYTES];
            uuid.bytes().get(bytes);
            return HexFormat.of().formatHex(bytes);
        }
    }

    private static String text(byte[] bytes) {
        int length = 0;
        while (bytes[length] != 0) {
            length++;
        }
        return new String(bytes, 0, length, StandardCharsets.UTF_8);
    }

    /** {@return the free memory of the GPU in bytes, at this moment, for all processes together} */
    public long freeMemory() {
        requireOpen();
        try (SizeTPointer free = new SizeTPointer(1);
                SizeTPointer total = new SizeTPointer(1)) {
            call("cuMemGetInfo", () -> cudart.cuMemGetInfo(free, total));
            return free.get();
        }
    }

    public int attribute(CudaAttribute attribute) {
        int[] value = new int[1];
        CudaDriver.check(
                cudart.cuDeviceGetAttribute(value, attribute.code(), ordinal),
                "cuDeviceGetAttribute");
        return value[0];
    }

    /**
     * {@return the architecture for which kernels are compiled, for example {@code sm_80} or {@code
     * sm_90a}; from compute capability 9.0 on with architecture-specific features}
     */
    public String architecture() {
        int major = attribute(CudaAttribute.COMPUTE_CAPABILITY_MAJOR);
        int minor = attribute(CudaAttribute.COMPUTE_CAPABILITY_MINOR);
        return "sm_" + major + minor + (major >= 9 ? "a" : "");
    }

    /**
     * Returns whether the GPU has bfloat16 instructions: compute capability 8.0 and later. For
     * other GPUs, bfloat16 kernels are not compiled; see {@code element.cuh}.
     */
    public boolean hasBfloat16() {
        return attribute(CudaAttribute.COMPUTE_CAPABILITY_MAJOR) >= 8;
    }

    /**
     * {@return the highest stream priority: a lower number is a higher priority, and 0 is the
     * default}
     */
    public int highestStreamPriority() {
        requireOpen();
        int[] lowest = new int[1];
        int[] highest = new int[1];
        call(
                "cuCtxGetStreamPriorityRange",
                () -> cudart.cuCtxGetStreamPriorityRange(lowest, highest));
        return highest[0];
    }

    /**
     * {@return whether this GPU can access a peer's memory; false for the GPU itself} The answer
     * may differ for the other direction.
     */
    public boolean canAccessPeer(CudaDevice peer) {
        int[] can = new int[1];
        CudaDriver.check(
                cudart.cuDeviceCanAccessPeer(can, ordinal, peer.ordinal), "cuDeviceCanAccessPeer");
        return can[0] != 0;
    }

    /**
     * Enables access of this GPU to all memory of {@code cudaMalloc} on a peer, as long as both
     * contexts exist. Idempotent, even if libtorch or NCCL has enabled the access.
     *
     * @param peer the peer; may be this GPU
     * @throws CudaException with {@code CUDA_ERROR_PEER_ACCESS_UNSUPPORTED} if this GPU cannot
     *     access the peer
     */
    public void enablePeerAccess(CudaDevice peer) {
        requireOpen();
        peer.requireOpen();
        if (peer.ordinal == ordinal) {
            return;
        }
        int result = in(() -> cudart.cuCtxEnablePeerAccess(peer.context, 0));
        if (result != cudart.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) {
            CudaDriver.check(result, "cuCtxEnablePeerAccess");
        }
    }

    /**
     * Makes a GPU current for the calling thread, as {@code cudaSetDevice}: later calls for it,
     * also those of libtorch, need no switch of the context. Does nothing for a CPU, and without
     * {@link NativeLibrary#CUDA_PRESETS}.
     */
    public static void makeCurrent(Device device) {
        if (device.isGpu() && NativeLibrary.CUDA_PRESETS.isAvailable()) {
            try (CudaDevice gpu = open(device)) {
                gpu.makeCurrent();
            }
        }
    }

    /** Makes the context current for the calling thread, for calls of other libraries. */
    public void makeCurrent() {
        requireOpen();
        CudaDriver.check(cudart.cuCtxSetCurrent(context), "cuCtxSetCurrent");
    }

    /** Waits for all work of this process on the GPU. */
    public void synchronize() {
        requireOpen();
        call("cuCtxSynchronize", cudart::cuCtxSynchronize);
    }

    /** Calls the driver with this context current, and checks its result. */
    void call(String function, IntSupplier call) {
        CudaDriver.check(in(call), function);
    }

    /** Begins a call of the driver; see {@link CudaDriver#enter}. */
    boolean enter(CallingThread thread) {
        thread.driverCalls++;
        return CudaDriver.enter(thread, context);
    }

    /** Calls the driver with this context current. */
    public int in(IntSupplier call) {
        return CudaDriver.in(context, call);
    }

    /** Calls another library with this context current; returns its result. */
    int inContext(IntSupplier call) {
        return CudaDriver.inContext(context, call);
    }

    boolean isSame(CudaDevice other) {
        return other.ordinal == ordinal;
    }

    void requireSame(CudaDevice other, String what) {
        if (!isSame(other)) {
            throw new IllegalArgumentException(
                    what + " belongs to " + other.device() + ", not to " + device());
        }
    }

    private void requireOpen() {
        if (closed) {
            throw new IllegalStateException(this + " is closed");
        }
    }

    /** Adds a reference to the context. */
    public synchronized void retain() {
        requireOpen();
        references++;
    }

    /** Releases a reference taken by {@link #retain} or {@link #open}. */
    public synchronized void release() {
        references--;
        if (references == 0) {
            CudaDriver.check(
                    cudart.cuDevicePrimaryCtxRelease(ordinal), "cuDevicePrimaryCtxRelease");
        }
    }

    /** Releases the context. Idempotent. */
    @Override
    public synchronized void close() {
        if (!closed) {
            closed = true;
            release();
        }
    }

    @Override
    public String toString() {
        return device().toString();
    }
}
