// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.Reader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.djlx.collectives.launch.cli.TextTable;

/**
 * The columns of a table of JSON objects: titles, and the fields below them. A field is {@code
 * format path}, {@code format path|other path} or {@code format path / path}, a quotient. A path is
 * made of names with dots. A format is {@code text}, {@code lower}, {@code size} of a list, {@code
 * micros}, {@code millis}, or one of {@link String#format}.
 */
record Columns(Map<String, String> fields) {

    private static final Pattern FIELD = Pattern.compile("\\{(.*?)}");

    /** The texts and columns of all tables, in {@code tables.json}. */
    static final JsonObject TEXTS = texts();

    private static JsonObject texts() {
        InputStream resource = Columns.class.getResourceAsStream("tables.json");
        try (Reader reader = new InputStreamReader(resource, StandardCharsets.UTF_8)) {
            return new Gson().fromJson(reader, JsonObject.class);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /** Returns the table that a command prints; a dash is a missing value. */
    static TextTable printed(String name, List<?> rows) {
        Gson gson = new GsonBuilder().serializeSpecialFloatingPointValues().create();
        List<JsonObject> objects =
                rows.stream().map(row -> gson.toJsonTree(row).getAsJsonObject()).toList();
        objects.stream().filter(row -> row.has("replay")).forEach(ResultsSection::completeRow);
        return of(TEXTS.getAsJsonObject("printed").getAsJsonObject(name)).table(objects, "-");
    }

    /** Reads titles and fields in their order. */
    static Columns of(JsonObject columns) {
        Map<String, String> fields = new LinkedHashMap<>();
        columns.asMap().forEach((title, field) -> fields.put(title, field.getAsString()));
        return new Columns(fields);
    }

    /** Returns a line for each row; a cell whose value is missing gets {@code missing}. */
    TextTable table(Iterable<JsonObject> rows, String missing) {
        TextTable table = new TextTable(fields.keySet().toArray(String[]::new));
        for (JsonObject row : rows) {
            table.add(fields.values().stream().map(f -> value(f, row).orElse(missing)).toArray());
        }
        return table;
    }

    /** Returns a line for each of the columns that a row has, below the rows' sizes. */
    TextTable transposed(String title, List<JsonObject> rows, JsonObject words) {
        List<String> titles = new ArrayList<>(List.of(title));
        rows.forEach(row -> titles.add(row.get("size").getAsString()));
        TextTable table = new TextTable(titles.toArray(String[]::new));
        fields.forEach(
                (name, field) -> {
                    List<String> cells = new ArrayList<>();
                    rows.forEach(row -> cells.add(value(field, row).orElse("")));
                    if (cells.stream().anyMatch(cell -> !cell.isEmpty())) {
                        cells.add(0, fill(name, words));
                        table.add(cells.toArray());
                    }
                });
        return table;
    }

    /** Replaces each {@code {field}} of a text; returns an empty text if a value is missing. */
    static String fill(String text, JsonObject values) {
        boolean complete =
                FIELD.matcher(text)
                        .results()
                        .allMatch(field -> value(field.group(1), values).isPresent());
        return complete
                ? FIELD.matcher(text)
                        .replaceAll(
                                field ->
                                        Matcher.quoteReplacement(
                                                value(field.group(1), values).orElseThrow()))
                : "";
    }

    /** Formats a field of an object; empty if the value is missing. */
    static Optional<String> value(String field, JsonObject row) {
        String[] words = field.split(" (/ )?");
        List<JsonElement> values =
                Stream.of(words)
                        .skip(1)
                        .map(path -> at(row, path))
                        .filter(Objects::nonNull)
                        .toList();
        if (values.size() < words.length - 1) {
            return Optional.empty();
        }
        JsonElement value = values.get(0);
        return Optional.of(
                switch (words[0]) {
                    case "text" -> value.getAsString();
                    case "lower" -> value.getAsString().toLowerCase(Locale.ROOT);
                    case "size" -> Integer.toString(value.getAsJsonArray().size());
                    default ->
                            format(
                                    words[0],
                                    values.stream()
                                            .map(JsonElement::getAsDouble)
                                            .reduce((a, b) -> a / b)
                                            .orElseThrow());
                });
    }

    /** Returns the value at the first of the paths that exists; null if there is none. */
    static JsonElement at(JsonObject root, String paths) {
        for (String path : paths.split("\\|")) {
            JsonElement value = root;
            for (String name : path.split("\\.")) {
                value = value instanceof JsonObject object ? object.get(name) : null;
            }
            if (value != null && !value.isJsonNull()) {
                return value;
            }
        }
        return null;
    }

    private static String format(String format, double value) {
        String pattern =
                switch (format) {
                    case "micros" -> value < 9.95 ? "%.2f" : value < 99.95 ? "%.1f" : "%.0f";
                    case "millis" -> value > 4.95 ? "%.1f" : "%.2f";
                    default -> format;
                };
        return String.format(Locale.ROOT, pattern, value);
    }
}
