// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.google.gson.JsonPrimitive;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Locale;
import java.util.stream.Stream;
import org.djlx.collectives.launch.cli.CliCommand;
import picocli.CommandLine.Command;
import picocli.CommandLine.Option;

/**
 * {@code check}: compares ci/results with the goals in ci/results/goals, which has one file for
 * each machine. A goal is a JSON object:
 *
 * <ul>
 *   <li>{@code file}: a file of ci/results
 *   <li>{@code list}: a list of rows in this file
 *   <li>{@code where}: fields with their values; "*" is any value. The goal is for each row with
 *       these fields
 *   <li>{@code value}: the name of the compared value in such a row, such as {@code replay.ours}
 *   <li>{@code goal}: the largest allowed value; with {@code of}, the largest multiple of another
 *       value
 *   <li>{@code of}: optional; where the other value is. Its {@code file}, {@code list}, {@code
 *       where} and {@code value} replace those of the goal. If it has only {@code value}, the other
 *       value is in the same row
 * </ul>
 */
@Command(
        name = "check",
        description =
                "Prints the goals of ci/results/goals that the figures of ci/results miss, and"
                        + " those without a figure. All goals are of times: smaller is better.")
final class CheckCommand extends CliCommand {

    private static final JsonElement ANY = new JsonPrimitive("*");

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
                List<JsonObject> rows = rows(goal);
                for (JsonObject row : rows.isEmpty() ? List.of(new JsonObject()) : rows) {
                    JsonObject where = goal.getAsJsonObject("where").deepCopy();
                    where.asMap().replaceAll((key, any) -> row.has(key) ? row.get(key) : any);
                    double figure = value(row, goal);
                    double limit = goal.get("goal").getAsDouble();
                    String name = text(goal, "file") + " " + where + " " + text(goal, "value");
                    String shown = "goal " + limit;
                    if (goal.get("of") instanceof JsonObject of) {
                        JsonObject other = goal.deepCopy();
                        other.add("where", where);
                        of.asMap().forEach(other::add);
                        shown += " x " + of;
                        // Other rows may have the same fields.
                        boolean same = !of.has("where") && !of.has("list") && !of.has("file");
                        limit *=
                                (same ? List.of(row) : rows(other))
                                        .stream()
                                                .mapToDouble(at -> value(at, other))
                                                .findFirst()
                                                .orElse(Double.NaN);
                    }
                    if (Double.isNaN(figure) || Double.isNaN(limit)) {
                        unmeasured++;
                        out().printf(Locale.ROOT, "  not measured: %s, %s%n", name, shown);
                    } else if (figure > limit) {
                        missed++;
                        out().printf(
                                        Locale.ROOT,
                                        "  %s: %.5g, %s: %.0f %% above%n",
                                        name,
                                        figure,
                                        shown,
                                        (figure / limit - 1) * 100);
                    } else {
                        met++;
                    }
                }
            }
            out().printf("  %d met, %d missed, %d not measured%n", met, missed, unmeasured);
            open += missed + unmeasured;
        }
        return strict && open > 0 ? 1 : 0;
    }

    /** Returns the rows that a goal selects; none if they are not measured. */
    private List<JsonObject> rows(JsonObject goal) throws IOException {
        Path file = root.resolve("ci/results").resolve(text(goal, "file"));
        if (!Files.exists(file)) {
            return List.of();
        }
        JsonElement found = parse(file).getAsJsonObject().get(text(goal, "list"));
        JsonArray rows = new JsonArray();
        if (found instanceof JsonArray list) {
            rows = list;
        } else if (found != null) {
            rows.add(found);
        }
        return rows.asList().stream()
                .map(JsonElement::getAsJsonObject)
                .filter(row -> matches(row, goal.getAsJsonObject("where")))
                .toList();
    }

    private static boolean matches(JsonObject row, JsonObject where) {
        return where.keySet().stream()
                .allMatch(
                        key ->
                                where.get(key).equals(ANY)
                                        ? row.has(key)
                                        : where.get(key).equals(row.get(key)));
    }

    /** Returns the value in a row that a goal compares; NaN if it is not measured. */
    private static double value(JsonObject row, JsonObject goal) {
        JsonElement value = row;
        for (String name : text(goal, "value").split("\\.")) {
            value = value == null ? null : value.getAsJsonObject().get(name);
        }
        return value == null ? Double.NaN : value.getAsDouble();
    }

    private static String text(JsonObject goal, String name) {
        return goal.get(name).getAsString();
    }

    private static JsonElement parse(Path file) throws IOException {
        return JsonParser.parseString(Files.readString(file));
    }
}
