/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.bench;

import java.io.BufferedReader;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;

/**
 * A program that takes cases as arguments and prints nccl-tests' table. Its stderr is this
 * process's.
 *
 * @param name the program's name
 * @param command the program and its first arguments
 */
record BenchProgram(String name, List<String> command) {

    /** Runs the program and returns its output. */
    List<String> run(List<String> args) throws IOException, InterruptedException {
        List<String> words = new ArrayList<>(command);
        words.addAll(args);
        Process process =
                new ProcessBuilder(words).redirectError(ProcessBuilder.Redirect.INHERIT).start();
        Thread stop = new Thread(process::destroy, "stop-" + name);
        Runtime.getRuntime().addShutdownHook(stop);
        List<String> lines;
        try (BufferedReader output = process.inputReader(StandardCharsets.UTF_8)) {
            lines = output.lines().toList();
        }
        int code = process.waitFor();
        Runtime.getRuntime().removeShutdownHook(stop);
        if (code != 0) {
            String printed = lines.isEmpty() ? "" : ": " + String.join("\n", lines);
            throw new IOException(name + " ended with code " + code + printed);
        }
        return lines;
    }

    /** Measures cases; returns a row for each. */
    List<BenchRow> measure(List<BenchCase> cases) throws IOException, InterruptedException {
        List<String> lines = run(cases.stream().map(BenchCase::toString).toList());
        List<BenchRow> rows =
                lines.stream().flatMap(line -> BenchRow.parse(line).stream()).toList();
        if (rows.size() != cases.size()) {
            throw new IOException(
                    name
                            + " printed "
                            + rows.size()
                            + " rows instead of "
                            + cases.size()
                            + ": "
                            + String.join("\n", lines));
        }
        return rows;
    }
}
