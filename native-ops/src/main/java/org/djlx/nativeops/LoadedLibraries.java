// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops;

import com.sun.jna.Library;
import java.io.BufferedReader;
import java.io.FileReader;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;

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
        List<String> paths;
        // ISO 8859-1, because paths may be invalid UTF-8. Not Files.lines, because its channel
        // fails if the thread is interrupted.
        try (BufferedReader maps =
                new BufferedReader(new FileReader(MAPS, StandardCharsets.ISO_8859_1))) {
            paths =
                    maps.lines()
                            .filter(line -> line.endsWith("/" + fileName))
                            .map(line -> line.substring(line.indexOf('/')))
                            .distinct()
                            .collect(Collectors.toList());
        } catch (IOException e) {
            throw linkError("cannot read " + MAPS + " to find " + fileName, e);
        }
        if (paths.isEmpty()) {
            throw new UnsatisfiedLinkError(fileName + " is not loaded in this process");
        }
        if (paths.size() > 1) {
            throw new UnsatisfiedLinkError(
                    fileName + " is loaded more than once, from " + String.join(" and ", paths));
        }
        String path = paths.get(0);
        return new String(path.getBytes(StandardCharsets.ISO_8859_1), StandardCharsets.UTF_8);
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
