// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Locale;
import java.util.stream.Stream;
import org.djlx.collectives.launch.cli.CliCommand;
import picocli.CommandLine.Command;
import picocli.CommandLine.Option;

/** {@code check}: compares ci/results with the goals of each machine in ci/results/goals. */
@Command(
        name = "check",
        description =
                "Prints the goals of ci/results/goals that the figures of ci/results miss, and"
                        + " those without a figure. All goals are of times: smaller is better.")
final class CheckCommand extends CliCommand {

    @Option(
            names = "--root",
            paramLabel = "FOLDER",
            description = "The checkout; the one that the command was started from if not given.")
    private Path root = Path.of(System.getProperty("djlx.home", "."));

    @Option(names = "--strict", description = "Exits with 1 unless all goals are met.")
    private boolean strict;

    @Override
    public Integer call() throws IOException {
        List<Path> machines;
        try (Stream<Path> files = Files.list(root.resolve("ci/results/goals"))) {
            machines = files.sorted().toList();
        }
        int open = 0;
        for (Path machine : machines) {
            int met = 0;
            int missed = 0;
            int unmeasured = 0;
            out().println(machine.getFileName().toString().replace(".json", ""));
            for (JsonElement element : parse(machine).getAsJsonArray()) {
                JsonObject goal = element.getAsJsonObject();
                double limit = goal.get("goal").getAsDouble();
                double figure = figure(goal);
                String name =
                        "%s %s %s"
                                .formatted(
                                        text(goal, "file"), goal.get("where"), text(goal, "value"));
                if (Double.isNaN(figure)) {
                    unmeasured++;
                    out().printf(Locale.ROOT, "  not measured: %s, goal %s%n", name, limit);
                } else if (figure > limit) {
                    missed++;
                    out().printf(
                                    Locale.ROOT,
                                    "  %s: %.5g, goal %s: %.0f %% above%n",
                                    name,
                                    figure,
                                    limit,
                                    (figure / limit - 1) * 100);
                } else {
                    met++;
                }
            }
            out().printf("  %d met, %d missed, %d not measured%n", met, missed, unmeasured);
            open += missed + unmeasured;
        }
        return strict && open > 0 ? 1 : 0;
    }

    /** The figure that a goal is for; NaN if no result has it. */
    private double figure(JsonObject goal) throws IOException {
        Path file = root.resolve("ci/results").resolve(text(goal, "file"));
        if (!Files.exists(file)) {
            return Double.NaN;
        }
        JsonElement found = parse(file).getAsJsonObject().get(goal.get("list").getAsString());
        JsonArray rows = new JsonArray();
        if (found instanceof JsonArray list) {
            rows = list;
        } else if (found != null) {
            rows.add(found);
        }
        JsonObject where = goal.getAsJsonObject("where");
        for (JsonElement row : rows) {
            if (row.getAsJsonObject().entrySet().containsAll(where.entrySet())) {
                JsonElement value = row;
                for (String name : text(goal, "value").split("\\.")) {
                    value = value == null ? null : value.getAsJsonObject().get(name);
                }
                return value == null ? Double.NaN : value.getAsDouble();
            }
        }
        return Double.NaN;
    }

    private static String text(JsonObject goal, String name) {
        return goal.get(name).getAsString();
    }

    private static JsonElement parse(Path file) throws IOException {
        return JsonParser.parseString(Files.readString(file));
    }
}
