// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops;

import ai.djl.engine.Engine;
import ai.djl.engine.EngineException;
import com.sun.jna.Function;
import com.sun.jna.ptr.IntByReference;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;

/** The versions of the native libraries in this process, for reports of measurements. */
public final class NativeVersions {

    private static final int DRIVER_VERSION_BYTES = 80;

    private NativeVersions() {}

    /**
     * Asks the libraries for their versions. Loads libtorch.
     *
     * @return the versions of {@code libtorch}, NVIDIA's {@code driver}, the {@code cuda} version
     *     that the driver supports, and {@code nccl}; unavailable libraries are left out
     */
    public static Map<String, String> query() {
        Map<String, String> versions = new LinkedHashMap<>();
        if (NativeLibrary.LIBTORCH.isAvailable()) {
            versions.put("libtorch", libtorch());
        }
        if (NativeLibrary.NVML.isAvailable()) {
            versions.put("driver", driver());
        }
        if (NativeLibrary.CUDA.isAvailable()) {
            int version =
                    number(LibraryProbes.open("CUDA", "", "libcuda.so.1"), "cuDriverGetVersion");
            versions.put("cuda", version / 1000 + "." + version % 1000 / 10);
        }
        if (NativeLibrary.NCCL.isAvailable()) {
            int version = number(LibraryProbes.open("NCCL", "", "libnccl.so.2"), "ncclGetVersion");
            versions.put(
                    "nccl", version / 10000 + "." + version % 10000 / 100 + "." + version % 100);
        }
        return versions;
    }

    /** Asks libtorch itself, because DJL reports the configured version, which may differ. */
    private static String libtorch() {
        Function version;
        try {
            version =
                    com.sun.jna.NativeLibrary.getInstance(LoadedLibraries.find("libtorch_cpu.so"))
                            .getFunction("aoti_torch_abi_version");
        } catch (UnsatisfiedLinkError e) {
            // libtorch before 2.9 does not have the function.
            return Engine.getEngine("PyTorch").getVersion() + " as DJL is configured";
        }
        return libtorchVersion((Long) version.invoke(Long.class, new Object[0]));
    }

    /** Formats an ABI version: its upper three bytes are major, minor and patch. */
    static String libtorchVersion(long abiVersion) {
        return "%s.%s.%s"
                .formatted(abiVersion >>> 56, abiVersion >>> 48 & 0xff, abiVersion >>> 40 & 0xff);
    }

    private static String driver() {
        com.sun.jna.NativeLibrary nvml = LibraryProbes.openNvml();
        call(nvml, "nvmlInit_v2");
        try {
            byte[] version = new byte[DRIVER_VERSION_BYTES];
            call(nvml, "nvmlSystemGetDriverVersion", version, version.length);
            return new String(version, StandardCharsets.US_ASCII).trim();
        } finally {
            call(nvml, "nvmlShutdown");
        }
    }

    private static int number(com.sun.jna.NativeLibrary library, String function) {
        IntByReference version = new IntByReference();
        call(library, function, version);
        return version.getValue();
    }

    private static void call(
            com.sun.jna.NativeLibrary library, String function, Object... arguments) {
        int result = library.getFunction(function).invokeInt(arguments);
        if (result != 0) {
            throw new EngineException(
                    function + " of " + library.getName() + " failed with error " + result);
        }
    }
}
