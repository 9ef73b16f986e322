/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
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
 * The source of kernels, with the files that it includes.
 *
 * @param name what the compiler calls it in messages, for example {@code all_reduce.cu}
 * @param text CUDA C++
 * @param headers the text of every file included with {@code #include "..."}, by the name that the
 *     {@code #include} uses
 */
public record KernelSource(String name, String text, Map<String, String> headers) {

    private static final Pattern INCLUDE =
            Pattern.compile("^\\s*#\\s*include\\s*\"([^\"]+)\"", Pattern.MULTILINE);

    /**
     * Copies the headers, in the order of their names.
     *
     * @param name what the compiler calls it
     * @param text CUDA C++
     * @param headers the text of every included file by its name
     * @throws NullPointerException if an argument is null
     */
    public KernelSource {
        Objects.requireNonNull(name, "the name is null");
        Objects.requireNonNull(text, "the text is null");
        headers = Collections.unmodifiableMap(new TreeMap<>(headers));
    }

    /**
     * Reads a source from the class path, and what it and its headers include with {@code #include
     * "..."}. Names count from the owner's folder, also in headers and in folders below, as with
     * the option {@code -I} of nvcc. No NVIDIA headers are there at run time.
     *
     * @param owner the class in whose folder, or in a folder below, the files lie
     * @param name the file's name from there, for example {@code all_reduce/all_reduce.cu}
     * @return the source
     * @throws IllegalArgumentException if a file is missing, or lies elsewhere
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
            throw new IllegalArgumentException(name + " is not in the folder of " + owner);
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
