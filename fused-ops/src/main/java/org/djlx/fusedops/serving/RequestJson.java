// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.serving;

import com.google.gson.Gson;
import com.google.gson.JsonElement;
import com.google.gson.JsonParseException;
import com.google.gson.Strictness;
import com.google.gson.TypeAdapter;
import com.google.gson.stream.JsonReader;
import com.google.gson.stream.JsonToken;
import java.io.IOException;
import java.io.StringReader;

/**
 * Parses the JSON of requests strictly (RFC 8259). Error messages omit Gson's advice to
 * programmers.
 */
public final class RequestJson {

    private static final TypeAdapter<JsonElement> ELEMENTS =
            new Gson().getAdapter(JsonElement.class);

    private RequestJson() {}

    /**
     * Parses a text that holds one JSON value.
     *
     * @throws IllegalArgumentException if the text is not one valid JSON value; its message may be
     *     shown to the client
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
