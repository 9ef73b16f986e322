/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.llm.api;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonPrimitive;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.djlx.fusedops.internal.RequestJson;

/**
 * A JSON object of a request. What is asked for is checked for its type and range; what nobody has
 * asked for is an error, so that no option is ignored. An option that is null is as good as none.
 */
final class JsonOptions {

    static final Gson GSON = new GsonBuilder().disableHtmlEscaping().serializeNulls().create();

    private static final int DEEPEST = 16;
    private static final int LONGEST_NUMBER = 40;
    private static final int MOST_STRINGS = 16;

    /** How many prompts one request may have: each takes memory before it is known to be right. */
    static final int MOST_PROMPTS = 128;

    private final JsonObject json;
    private final String path;
    private final Set<String> known = new HashSet<>();

    private JsonOptions(JsonObject json, String path) {
        this.json = json;
        this.path = path;
    }

    /** Reads the only JSON object of a text. */
    static JsonOptions parse(byte[] utf8) {
        if (utf8 == null) {
            throw new IllegalArgumentException("the request is null");
        }
        String text;
        try {
            text = StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(utf8)).toString();
        } catch (CharacterCodingException e) {
            throw ApiException.badRequest(null, "the request is not UTF-8");
        }
        if (text.isBlank()) { // As DJL Serving hands on what is not said to be JSON.
            throw ApiException.badRequest(
                    null, "the request is empty; send JSON, as Content-Type: application/json");
        }
        JsonElement json;
        try {
            json = RequestJson.parse(text, DEEPEST);
        } catch (IllegalArgumentException e) {
            throw ApiException.badRequest(null, e.getMessage());
        }
        if (!json.isJsonObject()) {
            throw ApiException.badRequest(null, "the request is no JSON object");
        }
        return new JsonOptions(json.getAsJsonObject(), "");
    }

    private JsonElement get(String name) {
        known.add(name);
        JsonElement value = json.get(name);
        return value == null || value.isJsonNull() ? null : value;
    }

    boolean has(String name) {
        return get(name) != null;
    }

    /** Returns that the value of an option is wrong. */
    ApiException wrong(String name, String must) {
        return ApiException.badRequest(path + name, "'" + path + name + "' must be " + must);
    }

    String text(String name, String otherwise) {
        JsonElement value = get(name);
        return value == null ? otherwise : text(name, value, "a string");
    }

    private String text(String name, JsonElement value, String must) {
        if (!(value instanceof JsonPrimitive primitive) || !primitive.isString()) {
            throw wrong(name, must);
        }
        String text = primitive.getAsString();
        if (!StandardCharsets.UTF_8.newEncoder().canEncode(text)) {
            throw wrong(name, "text without halves of surrogate pairs");
        }
        return text;
    }

    boolean flag(String name, boolean otherwise) {
        JsonElement value = get(name);
        if (value == null) {
            return otherwise;
        }
        if (!(value instanceof JsonPrimitive primitive) || !primitive.isBoolean()) {
            throw wrong(name, "true or false");
        }
        return primitive.getAsBoolean();
    }

    double number(String name, double least, double most, double otherwise) {
        JsonElement value = get(name);
        if (value == null) {
            return otherwise;
        }
        double number = number(value);
        if (!(number >= least && number <= most)) {
            boolean above = least == Double.MIN_NORMAL;
            throw wrong(
                    name,
                    above
                            ? "a number above 0 and at most " + most
                            : "a number from " + least + " to " + most);
        }
        return number;
    }

    /** Returns a number, or NaN if it is none. */
    private static double number(JsonElement value) {
        if (!(value instanceof JsonPrimitive primitive) || !primitive.isNumber()) {
            return Double.NaN;
        }
        String digits = primitive.getAsString();
        return digits.length() > LONGEST_NUMBER ? Double.NaN : Double.parseDouble(digits);
    }

    long integer(String name, long least, long most, long otherwise) {
        JsonElement value = get(name);
        return value == null ? otherwise : integer(name, value, least, most);
    }

    private long integer(String name, JsonElement value, long least, long most) {
        try {
            // Not by way of a double: seeds have 64 bits.
            if (value instanceof JsonPrimitive primitive && primitive.isNumber()) {
                long number = Long.parseLong(primitive.getAsString());
                if (number >= least && number <= most) {
                    return number;
                }
            }
        } catch (NumberFormatException e) {
            // Said below.
        }
        throw wrong(name, "a whole number from " + least + " to " + most);
    }

    /** Returns strings that may be given as one. */
    List<String> texts(String name) {
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
            if (texts.size() == MOST_STRINGS) {
                throw wrong(name, "at most " + MOST_STRINGS + " strings");
            }
            texts.add(text(name, element, must));
        }
        return texts;
    }

    boolean isArray(String name) {
        JsonElement value = get(name);
        return value != null && value.isJsonArray();
    }

    /**
     * Returns the prompts of an array that begins with a string or another array, by their places;
     * what is no such array alone, by its name.
     */
    JsonOptions prompts(String name) {
        JsonObject elements = new JsonObject();
        if (isArrayOfTexts(name)) {
            JsonArray array = get(name).getAsJsonArray();
            if (array.size() > MOST_PROMPTS) {
                throw wrong(name, "an array of at most " + MOST_PROMPTS + " prompts");
            }
            for (int i = 0; i < array.size(); i++) {
                elements.add(name + "[" + i + "]", array.get(i));
            }
        } else {
            elements.add(name, get(name));
        }
        return new JsonOptions(elements, path);
    }

    /** Tells whether it is an array that begins with a string or another array. */
    boolean isArrayOfTexts(String name) {
        return isArray(name)
                && !get(name).getAsJsonArray().isEmpty()
                && (get(name).getAsJsonArray().get(0).isJsonArray()
                        || get(name).getAsJsonArray().get(0) instanceof JsonPrimitive first
                                && first.isString());
    }

    /** Returns the names of all options. */
    Set<String> names() {
        return json.keySet();
    }

    /** Returns the whole numbers of an array, from 0 on; none if there is no array. */
    int[] integers(String name) {
        return integers(name, Integer.MAX_VALUE);
    }

    /** As above, of so many at most. */
    int[] integers(String name, int most) {
        if (!has(name)) {
            return new int[0];
        }
        if (!isArray(name)) {
            throw wrong(name, "an array of whole numbers");
        }
        JsonArray array = get(name).getAsJsonArray();
        if (array.size() > most) {
            throw wrong(name, "an array of at most " + most + " whole numbers");
        }
        int[] numbers = new int[array.size()];
        for (int i = 0; i < numbers.length; i++) {
            numbers[i] = (int) integer(name + "[" + i + "]", array.get(i), 0, Integer.MAX_VALUE);
        }
        return numbers;
    }

    /** Returns the options of an object in this one; empty ones if there is none. */
    JsonOptions object(String name) {
        JsonElement value = get(name);
        if (value != null && !value.isJsonObject()) {
            throw wrong(name, "an object");
        }
        return new JsonOptions(
                value == null ? new JsonObject() : value.getAsJsonObject(), path + name + '.');
    }

    /** Returns the objects of an array. */
    List<JsonOptions> objects(String name) {
        JsonElement value = get(name);
        if (value == null || !value.isJsonArray() || value.getAsJsonArray().isEmpty()) {
            throw wrong(name, "an array of one object or more");
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

    /** Checks that there is nothing else than what was asked for. */
    void requireNoOthers() {
        for (String name : json.keySet()) {
            if (!known.contains(name)) {
                throw ApiException.badRequest(
                        path + name, "there is no option '" + path + name + "'");
            }
        }
    }
}
