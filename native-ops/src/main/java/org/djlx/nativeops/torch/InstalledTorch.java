// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import ai.djl.util.Platform;
import ai.djl.util.Utils;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;

/**
 * Lets DJL run on a PyTorch that pip has installed, such as a newer version or one for CUDA 13, in
 * place of the libtorch that DJL brings or downloads.
 *
 * <pre>
 *   eval "$(java -cp PATH org.djlx.nativeops.torch.InstalledTorch python3)"
 *   java -cp PATH my.Program
 * </pre>
 *
 * <p>The class path holds this library, DJL's PyTorch engine and {@code pytorch-jni} 2.7.1, without
 * {@code pytorch-native-*}. The command prints the variables of the environment to set. It puts two
 * libraries into DJL's cache: DJL's native code, and an adapter between it and a newer libtorch
 * ({@code src/main/cpp/djl_adapter.c}).
 */
public final class InstalledTorch {

    private static final String JNI_VERSION = "2.7.1";
    private static final String JNI_FLAVOR = "cu128"; // of the native code for GPUs
    private static final String ADAPTER = "/linux-x86-64/libdjl_torch_adapter.so";
    private static final String JNI_LIBRARY = "libdjl_torch_" + JNI_VERSION + ".so";

    private static final String ANSWER = "InstalledTorch:"; // after what else Python prints

    private static final String QUERY =
            """
            import glob, os, torch
            home = os.path.dirname(torch.__file__)
            print("InstalledTorch:")
            print(torch.__version__.split("+")[0])
            print(torch.version.cuda or "")
            print(os.path.join(home, "lib"))
            print(":".join(sorted(glob.glob(os.path.join(os.path.dirname(home), "nvidia", "*", "lib")))))
            """;

    private InstalledTorch() {}

    /**
     * An installed libtorch: the version of CUDA that it is built for, such as 13.0, empty for
     * CPUs; and directories of the libraries that it needs, separated by colons.
     */
    record Installed(String version, String cuda, Path libraries, String dependencies) {

        String flavor() {
            return cuda.isEmpty() ? "cpu" : "cu" + cuda.replace(".", "");
        }
    }

    /**
     * Prints the variables of the environment, for the PyTorch of a Python: the arguments are its
     * command, {@code python3} if there are none.
     */
    public static void main(String[] arguments) throws IOException, InterruptedException {
        if (arguments.length > 1) {
            System.err.println("error: pass the command of one Python, for example python3");
            System.exit(2);
        }
        Installed installed;
        try {
            installed = query(arguments.length == 0 ? "python3" : arguments[0]);
        } catch (IllegalStateException e) {
            System.err.println("error: " + e.getMessage());
            System.exit(1);
            return;
        }
        prepare(installed)
                .forEach(
                        (name, value) ->
                                System.out.printf(
                                        "export %s='%s'%n", name, value.replace("'", "'\\''")));
    }

    /**
     * {@return whether this process runs on an installed PyTorch} DJL's native code does not load
     * models in TorchScript there: the JVM would crash.
     */
    public static boolean isUsed() {
        return isUsed(System.getenv("PYTORCH_LIBRARY_PATH"));
    }

    /** {@return whether a directory of libraries is one that {@link #prepare} has made} */
    static boolean isUsed(String libraries) {
        return libraries != null && Files.exists(Path.of(libraries).resolveSibling(JNI_LIBRARY));
    }

    /** Asks a Python about its PyTorch. */
    private static Installed query(String python) throws IOException, InterruptedException {
        Process process;
        try {
            process =
                    new ProcessBuilder(python, "-c", QUERY)
                            .redirectError(ProcessBuilder.Redirect.INHERIT)
                            .start();
        } catch (IOException e) {
            throw new IllegalStateException(
                    "cannot run %s (%s): pass a Python with PyTorch"
                            .formatted(python, e.getMessage()),
                    e);
        }
        process.getOutputStream().close();
        String output = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        List<String> lines = output.lines().toList();
        lines = lines.subList(lines.lastIndexOf(ANSWER) + 1, lines.size());
        if (process.waitFor() != 0 || lines.size() < 3) {
            throw new IllegalStateException(
                    "%s has no PyTorch: install it by `%s -m pip install torch`"
                            .formatted(python, python));
        }
        return new Installed(
                lines.get(0),
                lines.get(1),
                Path.of(lines.get(2)),
                lines.size() > 3 ? lines.get(3) : "");
    }

    /**
     * Puts the native code into DJL's cache; returns the variables of the environment, in the order
     * in which to set them.
     */
    static Map<String, String> prepare(Installed installed) throws IOException {
        Platform platform = Platform.detectPlatform("pytorch");
        Path directory =
                Utils.getEngineCacheDir("pytorch")
                        .resolve(
                                String.join(
                                        "-",
                                        installed.version(),
                                        installed.flavor(),
                                        platform.getClassifier()));
        Path libraries = directory.resolve("lib");
        Files.createDirectories(libraries);
        String flavor = installed.cuda().isEmpty() ? "cpu" : JNI_FLAVOR;
        copy("/jnilib/linux-x86_64/" + flavor + "/libdjl_torch.so", directory.resolve(JNI_LIBRARY));
        // DJL loads a file of this name for any version of libtorch.
        copy(ADAPTER, directory.resolve(platform.getApiVersion() + "-libdjl_torch.so"));
        // DJL loads all files of a directory. The one of pip holds other files, too.
        try (Stream<Path> files = Files.list(installed.libraries())) {
            for (Path file : files.filter(InstalledTorch::isLibrary).toList()) {
                Path link = libraries.resolve(file.getFileName());
                Files.deleteIfExists(link);
                Files.createSymbolicLink(link, file.toAbsolutePath());
            }
        }
        Map<String, String> variables = new LinkedHashMap<>();
        variables.put("PYTORCH_LIBRARY_PATH", libraries.toString());
        variables.put("PYTORCH_VERSION", installed.version());
        variables.put("PYTORCH_FLAVOR", installed.flavor());
        // Otherwise DJL downloads a tokenizer for GPUs.
        variables.put("RUST_FLAVOR", "cpu");
        String inherited = System.getenv("LD_LIBRARY_PATH");
        variables.put(
                "LD_LIBRARY_PATH",
                Stream.of(installed.libraries().toString(), installed.dependencies(), inherited)
                        .filter(path -> path != null && !path.isEmpty())
                        .reduce((first, second) -> first + ":" + second)
                        .orElseThrow());
        return variables;
    }

    private static boolean isLibrary(Path file) {
        return file.getFileName().toString().contains(".so") && Files.isRegularFile(file);
    }

    private static void copy(String resource, Path file) throws IOException {
        try (InputStream in = InstalledTorch.class.getResourceAsStream(resource)) {
            if (in == null) {
                throw new IllegalStateException(
                        ("%s is not on the class path: add ai.djl.pytorch:pytorch-jni:%s-%s")
                                .formatted(
                                        resource,
                                        JNI_VERSION,
                                        Platform.detectPlatform("pytorch").getApiVersion()));
            }
            Path temporary = Files.createTempFile(file.getParent(), "library", ".tmp");
            Files.copy(in, temporary, StandardCopyOption.REPLACE_EXISTING);
            Files.move(temporary, file, StandardCopyOption.ATOMIC_MOVE);
        }
    }
}
