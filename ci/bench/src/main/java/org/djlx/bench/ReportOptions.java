/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.bench;

import java.io.IOException;
import java.nio.file.Path;
import java.util.Map;
import picocli.CommandLine.Option;

/** The options of commands that write a report. */
final class ReportOptions {

    @Option(
            names = "--json",
            paramLabel = "FILE",
            description = "The file of the report, written after each result.")
    private Path json;

    @Option(
            names = "--commit",
            paramLabel = "COMMIT",
            description = "The measured commit, for the report.")
    private String commit;

    /** Returns the file of the report; null for none. */
    Path json() {
        return json;
    }

    /** Creates a report of that commit. */
    BenchReport report(String benchmark, Map<String, String> versions) throws IOException {
        return new BenchReport(benchmark, commit, versions);
    }
}
