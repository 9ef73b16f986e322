// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import java.io.IOException;
import java.nio.file.Path;
import java.util.Map;
import org.djlx.collectives.launch.cli.CliCommand;
import picocli.CommandLine.Option;

/** A command that writes a report. */
abstract class ReportCommand extends CliCommand {

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

    private BenchReport report;

    final void begin(String benchmark, Map<String, String> versions) throws IOException {
        report = new BenchReport(benchmark, commit, versions);
    }

    final void put(String name, Object value) {
        report.put(name, value);
    }

    /** Writes the report's current state into the file of {@code --json}, if it is given. */
    final void store() {
        if (json != null) {
            report.store(json);
        }
    }

    /** Prints the tables of what was put so far. */
    final void printTables() {
        print("%s", report.printed());
    }

    /** Prints a line about progress to stderr. */
    final void progress(String format, Object... values) {
        err().printf(format + "%n", values).flush();
    }
}
