/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops.cuda;

import ai.djl.Device;
import java.nio.charset.StandardCharsets;
import java.util.function.IntSupplier;
import java.util.function.Supplier;
import org.bytedeco.cuda.cudart.CUctx_st;
import org.bytedeco.cuda.global.cudart;
import org.djlx.nativeops.CudaProbe;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.host.CallingThread;
import org.djlx.nativeops.host.NativeMemory;

/**
 * A GPU, with its primary context: the one that libtorch, NCCL and CUDA's run-time library use.
 *
 * <p>The context is kept from {@link #open} until this object and everything made with it (streams,
 * events, memory, modules, graphs) is closed. Methods of this package leave the calling thread's
 * current context as it was, {@link #makeCurrent()} excepted; none needs one to be current, but
 * many calls are faster {@link #within} it. Safe for use by several threads.
 *
 * <p><b>Errors</b> of the driver are {@link CudaException}s; using what is closed is an {@link
 * IllegalStateException}.
 */
public final class CudaDevice implements AutoCloseable {

    private static final int NAME_BYTES = 256;

    private final int ordinal;
    private final CUctx_st context = new CUctx_st();

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
     * @param device the GPU, as DJL names it
     * @return the GPU, to be closed by the caller
     * @throws UnsatisfiedLinkError if CUDA cannot be used; see {@link NativeLibrary#CUDA_PRESETS}
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
     * Returns how many GPUs this process can use.
     *
     * @return the number of GPUs; 0 where {@link NativeLibrary#CUDA} is not available
     */
    public static int count() {
        return NativeLibrary.CUDA.isAvailable() ? CudaProbe.deviceCount() : 0;
    }

    /**
     * Returns the GPU's name in DJL.
     *
     * @return the device
     */
    public Device device() {
        return Device.gpu(ordinal);
    }

    /**
     * Returns the product's name.
     *
     * @return the name, for example {@code NVIDIA H200}
     */
    public String name() {
        byte[] name = new byte[NAME_BYTES];
        CudaDriver.check(cudart.cuDeviceGetName(name, name.length, ordinal), "cuDeviceGetName");
        return text(name);
    }

    /**
     * Returns where the GPU is on the PCI bus, which is the same in all processes of the host.
     *
     * @return the bus id as domain:bus:device.function, for example {@code 0000:1b:00.0}
     */
    public String pciBusId() {
        byte[] id = new byte[NAME_BYTES];
        CudaDriver.check(cudart.cuDeviceGetPCIBusId(id, id.length, ordinal), "cuDeviceGetPCIBusId");
        return text(id);
    }

    private static String text(byte[] bytes) {
        int length = 0;
        while (bytes[length] != 0) {
            length++;
        }
        return new String(bytes, 0, length, StandardCharsets.UTF_8);
    }

    /**
     * Returns a number that describes the GPU.
     *
     * @param attribute what to ask for
     * @return its value
     */
    public int attribute(CudaAttribute attribute) {
        int[] value = new int[1];
        CudaDriver.check(
                cudart.cuDeviceGetAttribute(value, attribute.code(), ordinal),
                "cuDeviceGetAttribute");
        return value[0];
    }

    /**
     * Returns what kernels are to be compiled for, with the features of just this architecture
     * where there are such (compute capability 9.0 and later).
     *
     * @return the architecture, for example {@code sm_80} or {@code sm_90a}
     */
    public String architecture() {
        int major = attribute(CudaAttribute.COMPUTE_CAPABILITY_MAJOR);
        int minor = attribute(CudaAttribute.COMPUTE_CAPABILITY_MINOR);
        return "sm_" + major + minor + (major >= 9 ? "a" : "");
    }

    /**
     * Tells whether the GPU has instructions for bfloat16, which it has from compute capability 8.0
     * on; without, kernels for it are left out of what is compiled, as {@code element.cuh} says.
     *
     * @return whether it has
     */
    public boolean hasBfloat16() {
        return attribute(CudaAttribute.COMPUTE_CAPABILITY_MAJOR) >= 8;
    }

    /**
     * Returns the priority of the streams that the GPU serves first.
     *
     * @return the priority; the lower the number, the sooner, and 0 is the default
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
     * Tells whether this GPU can address a peer's memory. Ask both ways: the answers can differ.
     *
     * @param peer the other GPU
     * @return whether it can; false for the GPU itself
     */
    public boolean canAccessPeer(CudaDevice peer) {
        int[] can = new int[1];
        CudaDriver.check(
                cudart.cuDeviceCanAccessPeer(can, ordinal, peer.ordinal), "cuDeviceCanAccessPeer");
        return can[0] != 0;
    }

    /**
     * Lets this GPU address all memory of a peer, for as long as both contexts live; does nothing
     * when called again, or if libtorch or NCCL did so before.
     *
     * @param peer the other GPU; may be this one
     * @throws CudaException with {@code CUDA_ERROR_PEER_ACCESS_UNSUPPORTED} if it cannot
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

    /** Makes the context current for the calling thread, for other libraries' sake. */
    public void makeCurrent() {
        requireOpen();
        CudaDriver.check(cudart.cuCtxSetCurrent(context), "cuCtxSetCurrent");
    }

    /**
     * Runs code with the context current for the calling thread, so that the calls in it need not
     * see to that each; restores the thread's own. The code must not make another context current
     * without restoring this one.
     *
     * @param body the code
     * @param <T> what it returns
     * @return what it returned
     */
    public <T> T within(Supplier<T> body) {
        requireOpen();
        return CudaDriver.within(context, body);
    }

    /** Waits until the GPU has done all work that this process gave it. */
    public void synchronize() {
        requireOpen();
        call("cuCtxSynchronize", cudart::cuCtxSynchronize);
    }

    /** Makes a call with this context current, and checks its result. */
    void call(String function, IntSupplier call) {
        CudaDriver.check(in(call), function);
    }

    /** Begins one call of the driver, as {@link CudaDriver#enter}. */
    boolean enter(CallingThread thread) {
        thread.driverCalls++;
        return CudaDriver.enter(thread, context);
    }

    /** As {@link #call}, but returns the result. */
    public int in(IntSupplier call) {
        return CudaDriver.in(context, call);
    }

    /** Calls another library with this context current; returns its result. */
    int inContext(IntSupplier call) {
        return CudaDriver.inContext(context, call);
    }

    /** Checks that two things that are to work together belong to one GPU. */
    void requireSame(CudaDevice other, String what) {
        if (other.ordinal != ordinal) {
            throw new IllegalArgumentException(
                    what + " is of " + other.device() + ", not of " + device());
        }
    }

    private void requireOpen() {
        if (closed) {
            throw new IllegalStateException(this + " is closed");
        }
    }

    /** Keeps the context for one more user. */
    public synchronized void retain() {
        requireOpen();
        references++;
    }

    /** Gives up what {@link #retain} or {@link #open} gave. */
    public synchronized void release() {
        references--;
        if (references == 0) {
            CudaDriver.check(
                    cudart.cuDevicePrimaryCtxRelease(ordinal), "cuDevicePrimaryCtxRelease");
        }
    }

    /** Gives up the context; does nothing when called again. */
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
