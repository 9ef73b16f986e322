// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import com.google.gson.JsonObject;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.djlx.llm.sampling.Grammar;
import org.djlx.llm.text.ToolCallStream;
import org.djlx.llm.text.ToolFormat;

/**
 * The tools of a chat, and how the model may call them.
 *
 * @param declarations the tools in the schema of chats, for the chat template
 * @param parameters the schema of the arguments of each tool that may be called, by name
 * @param strict the tools whose calls follow their schemas even if they are not forced. Forced
 *     calls of another tool are any JSON objects if its schema is not supported
 * @param isParallel whether an answer may have several calls
 */
record Tools(
        ToolFormat format,
        List<Map<String, Object>> declarations,
        Map<String, JsonObject> parameters,
        boolean isForced,
        Set<String> strict,
        boolean isParallel) {

    /**
     * Reads {@code tools} and {@code tool_choice}; null if there are none, or if none may be
     * called. {@code format} is null if the model has none. {@code nested} names the object that
     * describes a function; null if its entries stand beside its type, as in responses.
     */
    static Tools read(JsonOptions json, ToolFormat format, String nested) {
        boolean isParallel = json.flag("parallel_tool_calls", true);
        List<JsonOptions> tools = json.isEmpty("tools") ? List.of() : json.objects("tools");
        String choice = "function";
        String function = null;
        if (json.isObject("tool_choice")) {
            JsonOptions one = json.object("tool_choice");
            if (!one.text("type", "").equals("function")) {
                throw one.wrong("type", "function");
            }
            JsonOptions named = nested == null ? one : one.object(nested);
            function = named.text("name", "");
            named.requireNoOthers();
            one.requireNoOthers();
        } else {
            choice = json.text("tool_choice", tools.isEmpty() ? "none" : "auto");
            if (!List.of("none", "auto", "required").contains(choice)) {
                throw json.wrong("tool_choice", "none, auto, required or a function");
            }
        }
        Map<String, JsonObject> parameters = new LinkedHashMap<>();
        List<Map<String, Object>> declarations = new ArrayList<>();
        Set<String> strict = new HashSet<>();
        for (JsonOptions tool : tools) {
            if (!tool.text("type", "").equals("function")) {
                throw tool.wrong("type", "function; other tools are not supported");
            }
            JsonOptions declared = nested == null ? tool : tool.object(nested);
            String name = declared.text("name", "");
            if (!name.matches("[A-Za-z0-9_.-]{1,64}") || parameters.containsKey(name)) {
                throw declared.wrong("name", "1 to 64 of A-Z, a-z, 0-9, _, . and -, and unique");
            }
            declared.text("description", "");
            if (declared.flag("strict", false)) {
                strict.add(name);
            }
            parameters.put(name, arguments(declared.json("parameters")));
            declared.requireNoOthers();
            Map<String, Object> described = declared.values();
            described.remove("type"); // if it is not nested
            Map<String, Object> declaration = new LinkedHashMap<>();
            declaration.put("type", "function");
            declaration.put("function", described);
            declarations.add(declaration);
            tool.requireNoOthers();
        }
        if (choice.equals("none") || tools.isEmpty() && choice.equals("auto")) {
            return null;
        }
        if (function != null && !parameters.containsKey(function) || tools.isEmpty()) {
            throw json.wrong("tool_choice", "one of the tools: " + parameters.keySet());
        }
        if (format == null) {
            throw json.wrong(
                    "tools",
                    "left out: this model has no known format of tool calls. Start it with the"
                            + " option tool_call_parser (--tool-call-parser), one of "
                            + ToolFormat.names());
        }
        if (function != null) {
            parameters.keySet().retainAll(List.of(function));
        }
        boolean isForced = !choice.equals("auto");
        return new Tools(
                format, declarations, parameters, isForced, strict, isParallel && function == null);
    }

    /** Returns the schema of a tool's arguments, which are an object if it does not say so. */
    private static JsonObject arguments(JsonObject declared) {
        JsonObject schema = declared == null ? new JsonObject() : declared.deepCopy();
        if (declared == null) {
            schema.add("properties", new JsonObject());
        }
        if (Collections.disjoint(schema.keySet(), List.of("type", "$ref", "anyOf", "allOf"))) {
            schema.addProperty("type", "object");
        }
        return schema;
    }

    /**
     * Returns the grammar of answers; null if they are free. {@code answer} is that of answers
     * without calls; null if these are free.
     */
    Grammar grammar(JsonOptions json, Grammar answer) {
        if (!isForced && strict.isEmpty() && answer == null) {
            return null;
        }
        if (!isForced && !format.promptSuffix().isEmpty()) {
            throw json.wrong("tool_choice", "none or required beside a grammar or strict tools");
        }
        return OpenAiOptions.grammar(
                json,
                "tools",
                () -> {
                    boolean isEither = !isForced && answer != null;
                    Grammar calls = format.grammar(supported(), isParallel, isForced || isEither);
                    return isEither ? Grammar.anyOf(List.of(answer, calls)) : calls;
                });
    }

    /** Returns the schemas; any object for a tool that is not strict and has one not supported. */
    private Map<String, JsonObject> supported() {
        Map<String, JsonObject> supported = new LinkedHashMap<>(parameters);
        supported.replaceAll((name, schema) -> strict.contains(name) ? schema : supported(schema));
        return supported;
    }

    private static JsonObject supported(JsonObject schema) {
        try {
            Grammar.jsonSchema(schema);
            return schema;
        } catch (IllegalArgumentException e) {
            return JsonOptions.object("type", "object");
        }
    }

    ToolCallStream newStream() {
        return new ToolCallStream(format, parameters.keySet(), isForced);
    }
}
