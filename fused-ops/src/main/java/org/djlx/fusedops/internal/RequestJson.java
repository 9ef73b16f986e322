/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.internal;

import com.google.gson.Gson;
import com.google.gson.JsonElement;
import com.google.gson.JsonParseException;
import com.google.gson.Strictness;
import com.google.gson.TypeAdapter;
import com.google.gson.stream.JsonReader;
import com.google.gson.stream.JsonToken;
import java.io.IOException;
import java.io.StringReader;

/** Reads the JSON of requests by its standard, RFC 8259, and without Gson's advice in messages. */
public final class RequestJson {

    private static final TypeAdapter<JsonElement> ELEMENTS =
            new Gson().getAdapter(JsonElement.class);

    private RequestJson() {}

    /**
     * Reads the only value of a text.
     *
     * @param text the text
     * @param deepest how many arrays and objects may be in each other
     * @return the value
     * @throws IllegalArgumentException if it is something else; the message can be shown to who has
     *     sent it
     */
    public static JsonElement parse(String text, int deepest) {
        try (JsonReader reader = new JsonReader(new StringReader(text))) {
            reader.setStrictness(Strictness.STRICT);
            reader.setNestingLimit(deepest);
            reader.peek();
            JsonElement element = ELEMENTS.read(reader);
            if (reader.peek() != JsonToken.END_DOCUMENT) {
                throw new IllegalStateException("something follows the first value");
            }
            return element;
        } catch (IOException | JsonParseException | IllegalStateException e) {
            String why = String.valueOf(e.getMessage()).lines().findFirst().orElse("");
            throw new IllegalArgumentException(
                    "the request is not JSON that can be read: "
                            + why.replaceFirst("^Use JsonReader.* to accept malformed JSON ", ""),
                    e);
        }
    }
}
