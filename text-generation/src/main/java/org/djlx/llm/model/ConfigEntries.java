// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

import static org.djlx.nativeops.host.Required.check;

import ai.djl.ndarray.types.DataType;
import com.google.gson.Gson;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParseException;
import com.google.gson.JsonParser;
import com.google.gson.JsonPrimitive;
import java.io.IOException;
import java.nio.charset.CharacterCodingException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.function.Predicate;

/** The entries of a JSON object of a model's files. An entry of null counts as missing. */
record ConfigEntries(JsonObject json) {

    /** Reads a file; the message of an exception names it. */
    static ConfigEntries read(Path file) throws IOException {
        try {
            JsonElement json = JsonParser.parseString(Files.readString(file));
            check(json.isJsonObject(), "%s: not a JSON object", file);
            return new ConfigEntries(json.getAsJsonObject());
        } catch (NoSuchFileException e) {
            throw new NoSuchFileException(
                    file.toString(), null, "no such file; download it from where the weights are");
        } catch (JsonParseException e) {
            throw new IllegalArgumentException(
                    file + ": not JSON: " + e.getMessage() + "; download it again", e);
        } catch (CharacterCodingException e) {
            throw new IllegalArgumentException(
                    file + ": not JSON: it is not UTF-8; download it again", e);
        }
    }

    /** Returns these entries, and others in place of those that are missing. */
    ConfigEntries withDefaults(Map<String, ?> defaults) {
        JsonObject all = json.deepCopy();
        JsonObject others = new Gson().toJsonTree(defaults).getAsJsonObject();
        others.asMap().keySet().removeIf(this::has);
        others.asMap().forEach(all::add);
        return new ConfigEntries(all);
    }

    /** Sets the type of weights, unless it is null. */
    void setType(DataType type) {
        if (type != null) {
            json.addProperty("torch_dtype", type.name().toLowerCase(Locale.ROOT));
        }
    }

    JsonElement get(String name) {
        JsonElement value = json.get(name);
        return value == null || value.isJsonNull() ? null : value;
    }

    boolean has(String name) {
        return get(name) != null;
    }

    /** Returns a nested object; empty if it is missing. */
    ConfigEntries entries(String name) {
        JsonElement value = get(name);
        check(value == null || value.isJsonObject(), "%s must be an object, not %s", name, value);
        return new ConfigEntries(value == null ? new JsonObject() : value.getAsJsonObject());
    }

    String text(String name, String defaultValue) {
        JsonPrimitive value = primitive(name, "a string", JsonPrimitive::isString);
        return value == null ? defaultValue : value.getAsString();
    }

    boolean flag(String name, boolean defaultValue) {
        JsonPrimitive value = primitive(name, "true or false", JsonPrimitive::isBoolean);
        return value == null ? defaultValue : value.getAsBoolean();
    }

    private JsonPrimitive primitive(String name, String must, Predicate<JsonPrimitive> test) {
        JsonElement value = get(name);
        boolean fits = value == null || value instanceof JsonPrimitive own && test.test(own);
        check(fits, "%s must be %s, not %s", name, must, value);
        return (JsonPrimitive) value;
    }

    double number(String name, Double defaultValue) {
        JsonElement value = get(name);
        check(value != null || defaultValue != null, "%s is missing", name);
        return value == null ? defaultValue : anyNumber(name, value);
    }

    int integer(String name, Integer defaultValue) {
        JsonElement value = get(name);
        check(value != null || defaultValue != null, "%s is missing", name);
        return value == null ? defaultValue : wholeNumber(name, value);
    }

    /** Returns an array of whole numbers, or a single one; empty if it is missing. */
    List<Integer> integers(String name) {
        return array(name).stream().map(each -> wholeNumber(name, each)).toList();
    }

    /** Returns an array of numbers; empty if it is missing. */
    List<Double> numbers(String name) {
        return array(name).stream().map(each -> anyNumber(name, each)).toList();
    }

    /** Returns the elements of an array, or a single value; empty if it is missing. */
    List<JsonElement> array(String name) {
        JsonElement value = get(name);
        List<JsonElement> elements = new ArrayList<>();
        if (value != null && value.isJsonArray()) {
            value.getAsJsonArray().forEach(elements::add);
        } else if (value != null) {
            elements.add(value);
        }
        return elements;
    }

    private static int wholeNumber(String name, JsonElement value) {
        double number = anyNumber(name, value);
        check((int) number == number, "%s must be a whole number, not %s", name, value);
        return (int) number;
    }

    private static double anyNumber(String name, JsonElement value) {
        check(
                value.isJsonPrimitive() && value.getAsJsonPrimitive().isNumber(),
                "%s must be a number, not %s",
                name,
                value);
        return value.getAsDouble();
    }
}
