// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import com.sun.jna.Native;
import com.sun.jna.Pointer;
import com.sun.jna.StringArray;
import com.sun.jna.ptr.IntByReference;
import com.sun.jna.ptr.LongByReference;
import com.sun.jna.ptr.PointerByReference;
import java.nio.charset.StandardCharsets;
import java.util.Collection;
import java.util.List;
import org.djlx.nativeops.LibraryProbes;
import org.djlx.nativeops.NativeLibrary;

/** Binds NVRTC of CUDA 12 or 13. Load only if {@link NativeLibrary#NVRTC} is available. */
final class Nvrtc {

    private static final int SUCCESS = 0;
    private static final long EXIT_MILLIS = 20_000; // how long an exit waits for compilations

    private static int running; // compilations; guarded by the class, as isExiting
    private static boolean isExiting;

    static {
        Native.register(Nvrtc.class, LibraryProbes.openNvrtc());
        Runtime.getRuntime().addShutdownHook(new Thread(Nvrtc::exit, "nvrtc-exit"));
    }

    private Nvrtc() {}

    static String version() {
        IntByReference major = new IntByReference();
        IntByReference minor = new IntByReference();
        check(nvrtcVersion(major, minor), "nvrtcVersion", "");
        return "NVRTC " + major.getValue() + "." + minor.getValue();
    }

    /**
     * Compiles a source to a cubin, for the architecture in the options; throws
     * IllegalStateException if the JVM is exiting.
     */
    static byte[] compile(KernelSource source, List<String> options) {
        begin(source);
        try {
            return compiled(source, options);
        } finally {
            end();
        }
    }

    private static synchronized void begin(KernelSource source) {
        if (isExiting) {
            throw new IllegalStateException(
                    source.name() + " is not compiled, because the JVM is exiting");
        }
        running++;
    }

    private static synchronized void end() {
        running--;
        Nvrtc.class.notifyAll();
    }

    /** Waits for compilations: they crash when the exiting process destroys the compiler's data. */
    private static synchronized void exit() {
        isExiting = true;
        long end = System.currentTimeMillis() + EXIT_MILLIS;
        try {
            for (long left = EXIT_MILLIS; running > 0 && left > 0; ) {
                Nvrtc.class.wait(left);
                left = end - System.currentTimeMillis();
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private static byte[] compiled(KernelSource source, List<String> options) {
        PointerByReference created = new PointerByReference();
        check(
                nvrtcCreateProgram(
                        created,
                        terminated(source.text()),
                        terminated(source.name()),
                        source.headers().size(),
                        array(source.headers().values()),
                        array(source.headers().keySet())),
                "nvrtcCreateProgram",
                source.name());
        Pointer program = created.getValue();
        try {
            int result = nvrtcCompileProgram(program, options.size(), array(options));
            check(result, "nvrtcCompileProgram", result == SUCCESS ? "" : log(program));
            LongByReference size = new LongByReference();
            check(nvrtcGetCUBINSize(program, size), "nvrtcGetCUBINSize", source.name());
            byte[] cubin = new byte[Math.toIntExact(size.getValue())];
            check(nvrtcGetCUBIN(program, cubin), "nvrtcGetCUBIN", source.name());
            return cubin;
        } finally {
            nvrtcDestroyProgram(created);
        }
    }

    private static byte[] terminated(String text) {
        return (text + '\0').getBytes(StandardCharsets.UTF_8);
    }

    private static Pointer array(Collection<String> texts) {
        return texts.isEmpty()
                ? Pointer.NULL
                : new StringArray(texts.toArray(new String[0]), StandardCharsets.UTF_8.name());
    }

    private static String log(Pointer program) {
        LongByReference size = new LongByReference();
        if (nvrtcGetProgramLogSize(program, size) != SUCCESS || size.getValue() <= 1) {
            return "no log";
        }
        byte[] log = new byte[Math.toIntExact(size.getValue())];
        if (nvrtcGetProgramLog(program, log) != SUCCESS) {
            return "no log";
        }
        return new String(log, 0, log.length - 1, StandardCharsets.UTF_8).strip();
    }

    private static void check(int result, String function, String detail) {
        if (result != SUCCESS) {
            throw new CudaException(function, nvrtcGetErrorString(result), result, detail);
        }
    }

    private static native String nvrtcGetErrorString(int result);

    private static native int nvrtcVersion(IntByReference major, IntByReference minor);

    private static native int nvrtcCreateProgram(
            PointerByReference program,
            byte[] source,
            byte[] name,
            int headerCount,
            Pointer headers,
            Pointer includeNames);

    private static native int nvrtcDestroyProgram(PointerByReference program);

    private static native int nvrtcCompileProgram(
            Pointer program, int optionCount, Pointer options);

    private static native int nvrtcGetCUBINSize(Pointer program, LongByReference size);

    private static native int nvrtcGetCUBIN(Pointer program, byte[] cubin);

    private static native int nvrtcGetProgramLogSize(Pointer program, LongByReference size);

    private static native int nvrtcGetProgramLog(Pointer program, byte[] log);
}
