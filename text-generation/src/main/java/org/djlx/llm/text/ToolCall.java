// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonElement;
import com.google.gson.ToNumberPolicy;
import com.google.gson.reflect.TypeToken;
import java.util.LinkedHashMap;
import java.util.Map;
import org.djlx.fusedops.serving.RequestJson;

/**
 * A call of a tool.
 *
 * @param arguments a JSON object; nothing for an empty one
 */
public record ToolCall(String id, String name, String arguments) {

    static final Gson GSON =
            new GsonBuilder()
                    .setObjectToNumberStrategy(ToNumberPolicy.LAZILY_PARSED_NUMBER)
                    .create();
    private static final int MAX_DEPTH = 64;

    /**
     * {@return the arguments as a record or another class that Gson can create}
     *
     * @throws com.google.gson.JsonParseException if they have other types
     */
    public <T> T arguments(Class<T> type) {
        return GSON.fromJson(arguments.isBlank() ? "{}" : arguments, type);
    }

    /**
     * {@return the call as templates read it, with its arguments as an object}
     *
     * @throws IllegalArgumentException if the arguments are not a JSON object
     */
    public Map<String, Object> entry() {
        JsonElement json = RequestJson.parse(arguments.isBlank() ? "{}" : arguments, MAX_DEPTH);
        if (!json.isJsonObject()) {
            throw new IllegalArgumentException(
                    "the arguments of a call of " + name + " are no JSON object: " + arguments);
        }
        Map<String, Object> called = new LinkedHashMap<>(); // in the order in which it is printed
        called.put("name", name);
        called.put("arguments", GSON.fromJson(json, new TypeToken<Map<String, Object>>() {}));
        Map<String, Object> call = new LinkedHashMap<>();
        call.put("id", id);
        call.put("type", "function");
        call.put("function", called);
        return call;
    }
}
