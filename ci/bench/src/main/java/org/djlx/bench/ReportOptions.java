/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.bench;

import java.io.IOException;
import java.nio.file.Path;
import java.util.Map;
import picocli.CommandLine.Option;

/** The options of commands that keep what they have measured. */
final class ReportOptions {

    @Option(
            names = "--json",
            paramLabel = "FILE",
            description = "Where the result is stored, whenever there is more of it.")
    private Path json;

    @Option(
            names = "--commit",
            paramLabel = "COMMIT",
            description = "The state of the code, to keep.")
    private String commit;

    /** Where the result is stored; null for nowhere. */
    Path json() {
        return json;
    }

    /** Begins a report of that commit. */
    BenchReport report(String benchmark, Map<String, String> versions) throws IOException {
        return new BenchReport(benchmark, commit, versions);
    }
}
