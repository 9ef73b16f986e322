// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.TreeMap;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * The source of kernels and the files that it includes.
 *
 * @param name the name in the compiler's messages, for example {@code all_reduce.cu}
 * @param headers the text of every file included with {@code #include "..."}, by the name in the
 *     {@code #include}
 */
public record KernelSource(String name, String text, Map<String, String> headers) {

    private static final Pattern INCLUDE =
            Pattern.compile("^\\s*#\\s*include\\s*\"([^\"]+)\"", Pattern.MULTILINE);

    /** Copies the headers, sorted by name. */
    public KernelSource {
        Objects.requireNonNull(name, "the name is null");
        Objects.requireNonNull(text, "the text is null");
        headers = Collections.unmodifiableMap(new TreeMap<>(headers));
    }

    /**
     * Reads a source from the class path, with all files that it includes with {@code #include
     * "..."}, directly or through headers. All names are relative to the owner's folder, as with
     * nvcc's option {@code -I}. NVIDIA's headers are not available at run time.
     *
     * @param owner the class whose folder contains the files, directly or in subfolders
     * @param name the file's name in that folder, for example {@code all_reduce/all_reduce.cu}
     * @throws IllegalArgumentException if a file is missing or in another folder
     */
    public static KernelSource ofResource(Class<?> owner, String name) {
        String text = read(owner, name);
        Map<String, String> headers = new TreeMap<>();
        include(owner, text, headers);
        return new KernelSource(name.substring(name.lastIndexOf('/') + 1), text, headers);
    }

    private static void include(Class<?> owner, String text, Map<String, String> headers) {
        Matcher includes = INCLUDE.matcher(text);
        while (includes.find()) {
            String name = includes.group(1);
            if (!headers.containsKey(name)) {
                String header = read(owner, name);
                headers.put(name, header);
                include(owner, header, headers);
            }
        }
    }

    private static String read(Class<?> owner, String name) {
        if (name.startsWith("/") || List.of(name.split("/")).contains("..")) {
            throw new IllegalArgumentException(name + " must be in the folder of " + owner);
        }
        try (InputStream file = owner.getResourceAsStream(name)) {
            if (file == null) {
                throw new IllegalArgumentException(
                        "there is no " + name + " in the folder of " + owner);
            }
            return new String(file.readAllBytes(), StandardCharsets.UTF_8);
        } catch (IOException e) {
            throw new UncheckedIOException("cannot read " + name + " in the folder of " + owner, e);
        }
    }
}
