// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonParser;

/** Reads values out of JSON. */
public final class TestJson {

    private TestJson() {}

    /**
     * Returns a value.
     *
     * @param json the text
     * @param path the names and indices that lead to it, as in {@code choices.0.text}
     */
    public static JsonElement at(String json, String path) {
        JsonElement found = JsonParser.parseString(json);
        for (String step : path.split("\\.")) {
            found =
                    found instanceof JsonArray array
                            ? array.get(Integer.parseInt(step))
                            : found.getAsJsonObject().get(step);
        }
        return found;
    }
}
