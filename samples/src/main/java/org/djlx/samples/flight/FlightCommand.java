// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.flight;

import static org.djlx.collectives.launch.cli.UsageException.parsed;
import static org.djlx.collectives.launch.cli.UsageException.refuseIf;

import com.google.gson.JsonParseException;
import java.io.IOException;
import java.io.PrintWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import org.djlx.collectives.launch.cli.CliCommand;
import org.djlx.collectives.launch.cli.Ranks;
import org.djlx.collectives.launch.cli.TextTable;
import org.djlx.collectives.trace.FlightAnalysis;
import org.djlx.collectives.trace.FlightDump;
import org.djlx.collectives.trace.FlightEntry;
import org.djlx.collectives.trace.FlightFinding;
import picocli.CommandLine.Command;
import picocli.CommandLine.Parameters;

/** {@code flight}: compares the flight records of all ranks. */
@Command(
        name = "flight",
        description = {
            "Reads the flight records of a broken group's ranks. Finds the rank that is behind, or"
                    + " the rank with a different call."
        })
public final class FlightCommand extends CliCommand {

    private static final long NANOS_PER_SECOND = 1_000_000_000;

    @Parameters(
            paramLabel = "FILE",
            arity = "1..*",
            description = {
                "One record per rank. Records of several groups may be mixed.",
                "If several jobs had a group of the same name, only the latest job is shown."
            })
    private List<Path> files;

    @Override
    public Integer call() throws IOException {
        List<FlightDump> dumps = new ArrayList<>();
        for (Path file : files) {
            refuseIf(Files.notExists(file), "%s does not exist".formatted(file));
            dumps.add(read(file));
        }
        PrintWriter out = out();
        List<FlightAnalysis> groups = parsed(() -> FlightAnalysis.of(dumps));
        groups.forEach(group -> print(group, out));
        int taken = groups.stream().mapToInt(group -> group.dumps().size()).sum();
        if (taken < dumps.size()) {
            out.printf(
                    "records of earlier jobs left out: %d; give their files alone to see them%n",
                    dumps.size() - taken);
            out.flush();
        }
        return 0;
    }

    private static FlightDump read(Path file) throws IOException {
        if (Files.isDirectory(file)) {
            throw new IOException(file + " is not a flight record: it is a directory");
        }
        try {
            return FlightDump.read(file);
        } catch (IOException e) {
            // Users do not know the parser's terms.
            if (e.getCause() != null && e.getCause().getCause() instanceof JsonParseException) {
                throw new IOException(
                        file + " is not a flight record: it is not JSON, or JSON of another kind",
                        e);
            }
            throw e;
        }
    }

    private static void print(FlightAnalysis group, PrintWriter out) {
        out.printf(
                "group '%s', %d of %s: %s%n",
                group.group(),
                group.dumps().size(),
                Ranks.count(group.worldSize()),
                group.verdict());
        group.findings().stream().skip(1).map(FlightFinding::message).forEach(out::println);
        TextTable table =
                new TextTable(
                        "rank",
                        "first",
                        "called",
                        "started",
                        "completed",
                        "state",
                        "ms",
                        "last" + " call",
                        "dumped");
        group.dumps().forEach(dump -> add(dump, table));
        out.print(table);
        out.flush();
    }

    private static void add(FlightDump dump, TextTable table) {
        int count = dump.entries().size();
        FlightEntry last = count == 0 ? null : dump.entries().get(count - 1);
        table.add(
                dump.rank(),
                dump.firstRecorded(),
                dump.lastScheduled(),
                dump.lastStarted(),
                dump.lastCompleted(),
                last == null ? "" : last.state().name().toLowerCase(Locale.ROOT),
                last == null || last.durationMs() == null
                        ? "-"
                        : String.format(Locale.ROOT, "%.3f", last.durationMs()),
                last == null ? "" : last.call(),
                Instant.ofEpochSecond(
                                dump.timeDumpedNs() / NANOS_PER_SECOND,
                                dump.timeDumpedNs() % NANOS_PER_SECOND)
                        .truncatedTo(ChronoUnit.MILLIS));
    }
}
