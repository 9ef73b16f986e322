// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops;

import ai.djl.engine.EngineException;
import com.sun.jna.ptr.IntByReference;

/**
 * The probes of each {@link NativeLibrary}. A probe returns if the library works. Otherwise it
 * throws an error that says what it looked for, what it found, and what to do.
 */
public final class LibraryProbes {

    private LibraryProbes() {}

    static void libtorch() {
        try {
            ContextLoader.pytorch();
        } catch (EngineException e) {
            throw LoadedLibraries.linkError(e.getMessage(), e);
        }
        try {
            LoadedLibraries.own();
        } catch (UnsatisfiedLinkError e) {
            throw LoadedLibraries.linkError(
                    "the native part of native-ops does not load ("
                            + e.getMessage()
                            + "); it needs Linux x86-64, and a jar built where g++ is",
                    e);
        }
        try {
            // By name, because the package torch depends on this one.
            Class.forName("org.djlx.nativeops.torch.AotiTorch");
        } catch (LinkageError | ClassNotFoundException e) {
            Throwable cause = e.getCause() == null ? e : e.getCause();
            throw LoadedLibraries.linkError(
                    "the libtorch that DJL loaded lacks functions of the stable C ABI ("
                            + cause.getMessage()
                            + "); use libtorch 2.7.1 or later",
                    cause);
        }
    }

    static void cpuKernels() {
        NativeLibrary.LIBTORCH.ensureAvailability();
        try {
            Class.forName("org.djlx.nativeops.host.CpuKernels");
        } catch (LinkageError | ClassNotFoundException e) {
            throw LoadedLibraries.linkError(
                    "the kernels for CPUs do not load ("
                            + e.getMessage()
                            + "); they need AVX2, and a jar built with g++ 12 or newer",
                    e);
        }
    }

    static void nccl() {
        com.sun.jna.NativeLibrary nccl =
                open(
                        "NCCL",
                        "install NCCL 2 (Debian's package is libnccl2) or add the folder that holds"
                                + " it to LD_LIBRARY_PATH",
                        "libnccl.so.2");
        IntByReference version = new IntByReference();
        require(
                nccl,
                "ncclGetVersion",
                nccl.getFunction("ncclGetVersion").invokeInt(new Object[] {version}));
    }

    static void nvrtc() {
        com.sun.jna.NativeLibrary nvrtc = openNvrtc();
        Object[] version = {new IntByReference(), new IntByReference()};
        require(nvrtc, "nvrtcVersion", nvrtc.getFunction("nvrtcVersion").invokeInt(version));
    }

    static void nvml() {
        com.sun.jna.NativeLibrary nvml = openNvml();
        require(nvml, "nvmlInit_v2", nvml.getFunction("nvmlInit_v2").invokeInt(new Object[0]));
        // NVML counts references, so its users initialise it again.
        require(nvml, "nvmlShutdown", nvml.getFunction("nvmlShutdown").invokeInt(new Object[0]));
    }

    public static com.sun.jna.NativeLibrary openNvrtc() {
        return open(
                "NVRTC",
                "install CUDA's run-time compiler (NVIDIA's package is cuda-nvrtc) or add the"
                        + " folder that holds it to LD_LIBRARY_PATH",
                "libnvrtc.so.13",
                "libnvrtc.so.12",
                "libnvrtc.so");
    }

    public static com.sun.jna.NativeLibrary openNvml() {
        return open("NVML", "install NVIDIA's driver, which contains it", "libnvidia-ml.so.1");
    }

    /**
     * Opens the MPI that started this process. Where several are installed, the environment tells
     * which: Open MPI's mpirun and MPICH's mpiexec set different variables.
     */
    public static com.sun.jna.NativeLibrary openMpi() {
        // The JVM needs its own handler of SIGSEGV. UCX reads its variable when it is loaded.
        setIfUnset("OMPI_MCA_opal_signal", "6");
        setIfUnset("UCX_ERROR_SIGNALS", "");
        // Open MPI 4 and 5: messages of up to 64 KiB go through shared memory in one step. All
        // their buffers share 4 MiB, so they are allocated 8 at a time.
        for (String transport : new String[] {"vader", "sm"}) {
            setIfUnset("OMPI_MCA_btl_" + transport + "_eager_limit", "69632");
            setIfUnset("OMPI_MCA_btl_" + transport + "_free_list_inc", "8");
        }
        boolean mpich =
                System.getenv("PMI_RANK") != null && System.getenv("OMPI_COMM_WORLD_RANK") == null;
        String[] names =
                mpich
                        ? new String[] {"libmpi.so.12", "libmpich.so.12", "libmpi.so.40"}
                        : new String[] {"libmpi.so.40", "libmpi.so.12", "libmpich.so.12"};
        return open(
                "MPI",
                "install Open MPI or MPICH (Debian's packages are openmpi-bin and mpich) or add the"
                        + " folder that holds the cluster's MPI to LD_LIBRARY_PATH",
                names);
    }

    /** Sets a variable of the process's environment, which System.getenv does not see. */
    private static void setIfUnset(String name, String value) {
        com.sun.jna.NativeLibrary.getInstance("c")
                .getFunction("setenv")
                .invokeInt(new Object[] {name, value, 0});
    }

    /**
     * Opens the first file that the dynamic loader finds, in order of preference; throws
     * UnsatisfiedLinkError if there is none.
     */
    public static com.sun.jna.NativeLibrary open(String what, String remedy, String... fileNames) {
        UnsatisfiedLinkError last = null;
        for (String fileName : fileNames) {
            try {
                return com.sun.jna.NativeLibrary.getInstance(fileName);
            } catch (UnsatisfiedLinkError e) {
                last = e;
            }
        }
        throw LoadedLibraries.linkError(
                "%s was not found: the dynamic loader cannot open %s; %s"
                        .formatted(what, String.join(", ", fileNames), remedy),
                last);
    }

    private static void require(com.sun.jna.NativeLibrary library, String function, int result) {
        if (result != 0) {
            throw new UnsatisfiedLinkError(
                    ("%s of %s failed with error %s; the library does not fit this machine's"
                                    + " driver")
                            .formatted(function, library.getFile(), result));
        }
    }
}
