// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops;

/**
 * The native libraries that this project can use. Each library is probed on the first call of its
 * methods; the result is kept for the life of the process. Thread-safe.
 */
public enum NativeLibrary {
    /** libtorch, as loaded by DJL's PyTorch engine. Probing it loads that engine. */
    LIBTORCH(LibraryProbes::libtorch),
    /** This project's kernels for CPUs: Linux x86-64 with AVX2. Probing them loads libtorch. */
    CPU_KERNELS(LibraryProbes::cpuKernels),
    /** The CUDA driver, initialised, with at least one GPU. */
    CUDA(CudaProbe::run),
    /**
     * JavaCPP's presets of CUDA 12 or 13, whichever is on the class path. {@link
     * org.djlx.nativeops.cuda} calls the driver through them. Available only if {@link #CUDA} is.
     */
    CUDA_PRESETS(CudaPresetsProbe::cuda),
    /** cuBLASLt, of the presets' CUDA version. Probing it loads libtorch. */
    CUBLASLT(CudaPresetsProbe::cublasLt),
    /** NCCL 2. */
    NCCL(LibraryProbes::nccl),
    /** NVRTC, CUDA's run-time compiler, of CUDA 12 or 13. */
    NVRTC(LibraryProbes::nvrtc),
    /** NVML, which describes the GPUs of a host and how they are linked. */
    NVML(LibraryProbes::nvml),
    /** The MPI that started this process: Open MPI 4 or 5, or MPICH 3.2 or later. */
    MPI(LibraryProbes::openMpi);

    private final Runnable probe;
    private volatile boolean probed;
    private volatile Throwable unavailabilityCause;

    NativeLibrary(Runnable probe) {
        this.probe = probe;
    }

    /** {@return whether the library is available} Never throws. */
    public boolean isAvailable() {
        return unavailabilityCause() == null;
    }

    /**
     * {@return why the library is not available: what the probe looked for, what it found, and what
     * to do; null if the library is available} Never throws.
     */
    public Throwable unavailabilityCause() {
        if (!probed) {
            probe();
        }
        return unavailabilityCause;
    }

    /**
     * Throws if the library is not available.
     *
     * @throws UnsatisfiedLinkError if the library is not available; its message has the reason, and
     *     its cause is the {@link #unavailabilityCause()}
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
        // In an interrupted thread, file channels fail, and this result would be kept.
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
