// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops;

import com.sun.jna.Library;
import java.io.BufferedReader;
import java.io.FileReader;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.function.Predicate;

/** Finds libraries that this process has loaded by any means. */
public final class LoadedLibraries {

    private static final String MAPS = "/proc/self/maps";

    private LoadedLibraries() {}

    /**
     * {@return the path of a loaded library} Opening this path returns the same library; opening
     * the bare file name could load another copy from the search path.
     *
     * @throws UnsatisfiedLinkError if the library is not loaded, or loaded from several files
     */
    public static String find(String fileName) {
        List<String> paths = paths(fileName::equals);
        if (paths.isEmpty()) {
            throw new UnsatisfiedLinkError(fileName + " is not loaded in this process");
        }
        if (paths.size() > 1) {
            throw new UnsatisfiedLinkError(
                    fileName + " is loaded more than once, from " + String.join(" and ", paths));
        }
        return paths.get(0);
    }

    /**
     * {@return the paths of loaded libraries with this file name and any further version} Several
     * if a library is loaded more than once.
     *
     * @param name such as {@code libcudart.so.13}, also for {@code libcudart.so.13.0.96}
     */
    static List<String> versionsOf(String name) {
        return paths(
                file ->
                        file.startsWith(name)
                                && file.chars()
                                        .skip(name.length())
                                        .allMatch(c -> c == '.' || Character.isDigit(c)));
    }

    /** Returns the paths of loaded files whose names the predicate accepts. */
    private static List<String> paths(Predicate<String> fileName) {
        // ISO 8859-1, because paths may be invalid UTF-8. Not Files.lines, because its channel
        // fails if the thread is interrupted.
        try (BufferedReader maps =
                new BufferedReader(new FileReader(MAPS, StandardCharsets.ISO_8859_1))) {
            return maps.lines()
                    .filter(line -> fileName.test(line.substring(line.lastIndexOf('/') + 1)))
                    .map(line -> line.substring(line.indexOf('/')))
                    .distinct()
                    .map(path -> path.getBytes(StandardCharsets.ISO_8859_1))
                    .map(bytes -> new String(bytes, StandardCharsets.UTF_8))
                    .toList();
        } catch (IOException | UncheckedIOException e) {
            throw linkError("cannot read " + MAPS + " to find libraries: " + e.getMessage(), e);
        }
    }

    /** {@return the library of {@code src/main/cpp}} Fails if the jar was built without g++. */
    public static com.sun.jna.NativeLibrary own() {
        ClassLoader loader = LoadedLibraries.class.getClassLoader();
        return com.sun.jna.NativeLibrary.getInstance(
                "djlx_cpu", Map.of(Library.OPTION_CLASSLOADER, loader));
    }

    static UnsatisfiedLinkError linkError(String message, Throwable cause) {
        UnsatisfiedLinkError error = new UnsatisfiedLinkError(message);
        error.initCause(cause);
        return error;
    }
}
