/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops;

/**
 * The native libraries that this project can use. Each is looked for when first asked about, and
 * the answer is kept for the life of the process. Safe for use by several threads.
 */
public enum NativeLibrary {
    /** libtorch, as loaded by DJL's PyTorch engine; asking about it loads that engine. */
    LIBTORCH(LibraryProbes::libtorch),
    /** The CUDA driver, initialised, with at least one GPU. */
    CUDA(CudaProbe::run),
    /**
     * JavaCPP's CUDA presets, through which the {@code Cuda} classes of this package call the
     * driver; {@link #CUDA} is available where they are. Of CUDA 12 or 13, as the user's class path
     * has it.
     */
    CUDA_PRESETS(CudaPresetsProbe::run),
    /** cuBLASLt, of the same version, through the same presets. */
    CUBLASLT(CublasLtProbe::run),
    /** NCCL 2. */
    NCCL(LibraryProbes::nccl),
    /** NVRTC, CUDA's run-time compiler, of CUDA 12 or 13. */
    NVRTC(LibraryProbes::nvrtc),
    /** NVML, which describes the GPUs of a host and how they are linked. */
    NVML(LibraryProbes::nvml);

    private final Runnable probe;
    private volatile boolean probed;
    private volatile Throwable unavailabilityCause;

    NativeLibrary(Runnable probe) {
        this.probe = probe;
    }

    /**
     * Tells whether the library can be used. Never throws.
     *
     * @return whether it can be used
     */
    public boolean isAvailable() {
        return unavailabilityCause() == null;
    }

    /**
     * Returns why the library cannot be used: what was looked for, what was found, what to do.
     * Never throws.
     *
     * @return the cause, or null if the library can be used
     */
    public Throwable unavailabilityCause() {
        if (!probed) {
            probe();
        }
        return unavailabilityCause;
    }

    /**
     * Does nothing if the library can be used.
     *
     * @throws UnsatisfiedLinkError if it cannot, with the reason in its message and the {@link
     *     #unavailabilityCause()} as its cause
     */
    public void ensureAvailability() {
        Throwable cause = unavailabilityCause();
        if (cause != null) {
            throw LoadedLibraries.linkError(
                    name() + " is not available: " + cause.getMessage(), cause);
        }
    }

    private synchronized void probe() {
        if (probed) {
            return;
        }
        // What reads files by channels would fail in an interrupted thread, and that for good.
        boolean interrupted = Thread.interrupted();
        try {
            probe.run();
        } catch (RuntimeException | LinkageError e) {
            unavailabilityCause = e;
        } finally {
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
        probed = true;
    }
}
