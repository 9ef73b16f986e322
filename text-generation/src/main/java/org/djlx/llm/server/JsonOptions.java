// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonPrimitive;
import com.google.gson.ToNumberPolicy;
import com.google.gson.reflect.TypeToken;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.djlx.fusedops.serving.RequestJson;
import org.djlx.nativeops.host.Required;

/**
 * Reads options from a JSON object of a request. Getters check type and range. {@link
 * #requireNoOthers} refuses options that no getter has read, so no option is ignored. An option of
 * null counts as missing, whatever its name.
 */
final class JsonOptions {

    static final Gson GSON =
            new GsonBuilder()
                    .disableHtmlEscaping()
                    .serializeNulls()
                    .setObjectToNumberStrategy(ToNumberPolicy.LAZILY_PARSED_NUMBER)
                    .create();

    private static final int MAX_DEPTH = 64;
    private static final int MAX_NUMBER_LENGTH = 40;
    static final int MAX_STRINGS = 16;

    /** The maximum number of prompts of a request: each takes memory before it is checked. */
    static final int MAX_PROMPTS = 128;

    private final JsonObject json;
    private final String path;
    private final Set<String> known = new HashSet<>();
    private Map<String, Double> defaults = Map.of(); // of numbers that the request leaves out

    private JsonOptions(JsonObject json, String path) {
        this.json = json;
        this.path = path;
    }

    /** Parses a request, which must be one JSON object. */
    static JsonOptions parse(byte[] utf8) {
        Required.argument("the request", utf8);
        String text;
        try {
            text = StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(utf8)).toString();
        } catch (CharacterCodingException e) {
            throw ApiException.badRequest(null, "the request is not UTF-8");
        }
        if (text.isBlank()) { // DJL Serving passes no body of other content types.
            throw ApiException.badRequest(
                    null, "the request is empty; send JSON with Content-Type: application/json");
        }
        JsonElement json;
        try {
            json = RequestJson.parse(text, MAX_DEPTH);
        } catch (IllegalArgumentException e) {
            throw ApiException.badRequest(null, e.getMessage());
        }
        if (!json.isJsonObject()) {
            throw ApiException.badRequest(null, "the request is not a JSON object");
        }
        return new JsonOptions(json.getAsJsonObject(), "");
    }

    /** Returns a JSON object of names and values: JSON, strings, numbers, booleans or null. */
    static JsonObject object(Object... namesAndValues) {
        JsonObject json = new JsonObject();
        for (int i = 0; i < namesAndValues.length; i += 2) {
            json.add((String) namesAndValues[i], element(namesAndValues[i + 1]));
        }
        return json;
    }

    /** As {@link Gson#toJsonTree}, but fast for texts and numbers: each event has some. */
    private static JsonElement element(Object value) {
        return value instanceof JsonElement element
                ? element
                : value instanceof String text
                        ? new JsonPrimitive(text)
                        : value instanceof Number number
                                ? new JsonPrimitive(number)
                                : GSON.toJsonTree(value);
    }

    private JsonElement get(String name) {
        known.add(name);
        JsonElement value = json.get(name);
        return value == null || value.isJsonNull() ? null : value;
    }

    boolean has(String name) {
        return get(name) != null;
    }

    /** Sets the values of numbers that the request leaves out, in place of a getter's default. */
    void setDefaults(Map<String, Double> defaults) {
        this.defaults = defaults;
    }

    ApiException wrong(String name, String must) {
        return ApiException.badRequest(path + name, "'" + path + name + "' must be " + must);
    }

    String text(String name, String defaultValue) {
        JsonElement value = get(name);
        return value == null ? defaultValue : text(name, value, "a string");
    }

    private String text(String name, JsonElement value, String must) {
        if (!(value instanceof JsonPrimitive primitive) || !primitive.isString()) {
            throw wrong(name, must);
        }
        return primitive.getAsString();
    }

    /**
     * Reads an option that does not change the answer. {@code values} are the accepted ones in
     * JSON; none if all are.
     */
    void neutral(String name, String... values) {
        JsonElement value = get(name);
        if (value != null && values.length > 0 && !List.of(values).contains(value.toString())) {
            throw wrong(name, String.join(" or ", values) + "; other values are not supported");
        }
    }

    boolean flag(String name, boolean defaultValue) {
        JsonElement value = get(name);
        if (value == null) {
            return defaultValue;
        }
        if (!(value instanceof JsonPrimitive primitive) || !primitive.isBoolean()) {
            throw wrong(name, "true or false");
        }
        return primitive.getAsBoolean();
    }

    double number(String name, double min, double max, double defaultValue) {
        JsonElement value = get(name);
        if (value == null) {
            return defaults.getOrDefault(name, defaultValue);
        }
        double number = number(value);
        if (!(number >= min && number <= max)) {
            boolean above = min == Double.MIN_NORMAL;
            throw wrong(
                    name,
                    above
                            ? "a number above 0 and at most " + max
                            : "a number from " + min + " to " + max);
        }
        return number;
    }

    /** Returns NaN if the value is not a number, or is longer than any useful number. */
    private static double number(JsonElement value) {
        if (!(value instanceof JsonPrimitive primitive) || !primitive.isNumber()) {
            return Double.NaN;
        }
        String digits = primitive.getAsString();
        return digits.length() > MAX_NUMBER_LENGTH ? Double.NaN : Double.parseDouble(digits);
    }

    long integer(String name, long min, long max, long defaultValue) {
        JsonElement value = get(name);
        if (value == null) {
            return defaults.containsKey(name) ? defaults.get(name).longValue() : defaultValue;
        }
        return integer(name, value, min, max);
    }

    private long integer(String name, JsonElement value, long min, long max) {
        try {
            // Not parsed as a double, because seeds have 64 bits.
            if (value instanceof JsonPrimitive primitive && primitive.isNumber()) {
                long number = Long.parseLong(primitive.getAsString());
                if (number >= min && number <= max) {
                    return number;
                }
            }
        } catch (NumberFormatException e) {
            // Falls through to the error below.
        }
        throw wrong(name, "a whole number from " + min + " to " + max);
    }

    /** Returns an array of strings; a single string counts as an array of one. */
    List<String> texts(String name, int maxLength) {
        JsonElement value = get(name);
        if (value == null) {
            return List.of();
        }
        String must = "a string or an array of strings";
        if (!value.isJsonArray()) {
            return List.of(text(name, value, must));
        }
        List<String> texts = new ArrayList<>();
        for (JsonElement element : value.getAsJsonArray()) {
            if (texts.size() == maxLength) {
                throw wrong(name, "at most " + maxLength + " strings");
            }
            texts.add(text(name, element, must));
        }
        return texts;
    }

    boolean isObject(String name) {
        JsonElement value = get(name);
        return value != null && value.isJsonObject();
    }

    /** Returns whether an option is missing or an empty array. */
    boolean isEmpty(String name) {
        return !has(name) || isArray(name) && get(name).getAsJsonArray().isEmpty();
    }

    boolean isArray(String name) {
        JsonElement value = get(name);
        return value != null && value.isJsonArray();
    }

    /**
     * Returns the prompts of an option. If {@link #isArrayOfTexts}, the elements are named {@code
     * name[0]}, {@code name[1]} …; otherwise the option is a single prompt under its own name.
     */
    JsonOptions prompts(String name, int most) {
        JsonObject elements = new JsonObject();
        if (isArrayOfTexts(name)) {
            JsonArray array = get(name).getAsJsonArray();
            if (array.size() > most) {
                throw wrong(name, "an array of at most " + most + " prompts");
            }
            for (int i = 0; i < array.size(); i++) {
                elements.add(name + "[" + i + "]", array.get(i));
            }
        } else {
            elements.add(name, get(name));
        }
        return new JsonOptions(elements, path);
    }

    /** Returns whether an option is an array whose first element is a string or an array. */
    boolean isArrayOfTexts(String name) {
        return isArray(name)
                && !get(name).getAsJsonArray().isEmpty()
                && (get(name).getAsJsonArray().get(0).isJsonArray()
                        || get(name).getAsJsonArray().get(0) instanceof JsonPrimitive first
                                && first.isString());
    }

    Set<String> names() {
        return json.keySet();
    }

    /** Returns an array of whole numbers, 0 or more each; empty if the option is missing. */
    int[] integers(String name, int maxLength) {
        if (!has(name)) {
            return new int[0];
        }
        if (!isArray(name)) {
            throw wrong(name, "an array of whole numbers");
        }
        JsonArray array = get(name).getAsJsonArray();
        if (array.size() > maxLength) {
            throw wrong(name, "an array of at most " + maxLength + " whole numbers");
        }
        int[] numbers = new int[array.size()];
        for (int i = 0; i < numbers.length; i++) {
            numbers[i] = (int) integer(name + "[" + i + "]", array.get(i), 0, Integer.MAX_VALUE);
        }
        return numbers;
    }

    /** Returns an object of numbers by token. */
    Map<Integer, Double> numbersByToken(String name, double min, double max, int maxCount) {
        JsonOptions numbers = object(name);
        if (numbers.names().size() > maxCount) {
            throw wrong(name, "an object of at most " + maxCount + " tokens");
        }
        Map<Integer, Double> result = new HashMap<>();
        for (String token : numbers.names()) {
            if (!token.matches("[0-9]{1,9}")) {
                throw wrong(name, "an object of numbers by token id, not by '" + token + "'");
            }
            result.put(Integer.valueOf(token), numbers.number(token, min, max, 0));
        }
        return result;
    }

    /** Returns a nested object; empty if the option is missing. */
    JsonOptions object(String name) {
        JsonElement value = get(name);
        if (value != null && !value.isJsonObject()) {
            throw wrong(name, "an object");
        }
        return new JsonOptions(
                value == null ? new JsonObject() : value.getAsJsonObject(), path + name + '.');
    }

    /** Returns a nested object as it is; null if the option is missing. */
    JsonObject json(String name) {
        object(name);
        return has(name) ? get(name).getAsJsonObject() : null;
    }

    /** Returns all options, as Java's maps, lists, numbers and strings. */
    Map<String, Object> values() {
        return GSON.fromJson(json, new TypeToken<Map<String, Object>>() {}.getType());
    }

    List<JsonOptions> objects(String name) {
        JsonElement value = get(name);
        if (value == null || !value.isJsonArray() || value.getAsJsonArray().isEmpty()) {
            throw wrong(name, "an array of one or more objects");
        }
        List<JsonOptions> objects = new ArrayList<>();
        for (JsonElement element : value.getAsJsonArray()) {
            if (!element.isJsonObject()) {
                throw wrong(name, "an array of objects");
            }
            String place = path + name + '[' + objects.size() + "].";
            objects.add(new JsonOptions(element.getAsJsonObject(), place));
        }
        return objects;
    }

    JsonObject echo(String defaults) {
        JsonObject echo = GSON.fromJson(defaults, JsonObject.class);
        echo.keySet().stream().filter(this::has).forEach(name -> echo.add(name, get(name)));
        return echo;
    }

    /** Refuses options that no getter has read. */
    void requireNoOthers() {
        for (String name : json.keySet()) {
            if (!known.contains(name) && !json.get(name).isJsonNull()) {
                throw ApiException.badRequest(path + name, "unknown option '" + path + name + "'");
            }
        }
    }
}
