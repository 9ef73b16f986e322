// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text;

import com.google.gson.JsonObject;
import com.google.gson.reflect.TypeToken;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import org.djlx.llm.sampling.Grammar;

/**
 * The tools of a chat, and how the model may call them.
 *
 * @param callable the names of the tools that may be called
 * @param isForced whether the answer has to be a call
 * @param isParallel whether an answer may have several calls
 */
public record ChatTools(
        List<Tool> tools, Set<String> callable, boolean isForced, boolean isParallel) {

    /** Throws an {@link IllegalArgumentException} if two tools have the same name. */
    public ChatTools {
        long names = tools.stream().map(Tool::name).distinct().count();
        if (tools.isEmpty() || names < tools.size()) {
            throw new IllegalArgumentException("a chat needs tools of different names: " + tools);
        }
    }

    /** Creates tools that may be called, also several in an answer. */
    public ChatTools(List<Tool> tools) {
        this(
                tools,
                tools.stream().map(Tool::name).collect(Collectors.toUnmodifiableSet()),
                false,
                true);
    }

    /** {@return these tools; the answer has to be a call} */
    public ChatTools forced() {
        return new ChatTools(tools, callable, true, isParallel);
    }

    /**
     * A tool.
     *
     * @param parameters the JSON schema of its arguments
     * @param isStrict whether all calls follow the schema, forced or not. If a tool is not strict
     *     and its schema is not supported, the arguments of a forced call are any JSON object
     * @param declaration the tool as the chat template shows it to the model
     */
    public record Tool(
            String name, JsonObject parameters, boolean isStrict, Map<String, Object> declaration) {

        /**
         * Adds the type {@code object} to a schema without a type. Without a schema, a tool takes
         * no arguments.
         */
        public Tool {
            JsonObject schema = parameters == null ? new JsonObject() : parameters.deepCopy();
            if (parameters == null) {
                schema.add("properties", new JsonObject());
            }
            if (Collections.disjoint(schema.keySet(), List.of("type", "$ref", "anyOf", "allOf"))) {
                schema.addProperty("type", "object");
            }
            parameters = schema;
        }

        /** Creates a tool; {@code description} and {@code parameters} may be null. */
        public Tool(String name, String description, JsonObject parameters) {
            this(name, description, parameters, false);
        }

        /** Creates a tool; {@code description} and {@code parameters} may be null. */
        public Tool(String name, String description, JsonObject parameters, boolean isStrict) {
            this(name, parameters, isStrict, declaration(name, description, parameters));
        }

        private static Map<String, Object> declaration(
                String name, String description, JsonObject parameters) {
            Map<String, Object> declaration = new LinkedHashMap<>();
            declaration.put("name", name);
            if (description != null) {
                declaration.put("description", description);
            }
            if (parameters != null) {
                TypeToken<Map<String, Object>> type = new TypeToken<>() {};
                declaration.put("parameters", ToolCall.GSON.fromJson(parameters, type));
            }
            return declaration;
        }

        /**
         * Returns the schema; that of any object if it is not supported and the tool not strict.
         */
        private JsonObject supported() {
            if (!isStrict) {
                try {
                    Grammar.jsonSchema(parameters);
                } catch (IllegalArgumentException e) {
                    JsonObject any = new JsonObject();
                    any.addProperty("type", "object");
                    return any;
                }
            }
            return parameters;
        }
    }

    /** Returns the tools in OpenAI's schema, for the chat template. */
    List<Map<String, Object>> declarations() {
        return tools.stream()
                .map(
                        tool -> {
                            Map<String, Object> declaration = new LinkedHashMap<>();
                            declaration.put("type", "function");
                            declaration.put("function", tool.declaration);
                            return declaration;
                        })
                .toList();
    }

    /**
     * Returns the grammar of answers; null if none constrains them. {@code answer} is the grammar
     * of answers without calls, or null.
     */
    Grammar grammar(ToolFormat format, Grammar answer) {
        boolean isStrict = tools.stream().anyMatch(Tool::isStrict);
        if (!isForced && !isStrict && answer == null) {
            return null;
        }
        if (!isForced && !format.promptSuffix().isEmpty()) {
            throw new IllegalArgumentException(
                    "with this model's format of calls, a grammar or strict tools need the"
                            + " 'tool_choice' required, or no tools");
        }
        boolean isEither = !isForced && answer != null;
        Map<String, JsonObject> schemas = new LinkedHashMap<>();
        tools.stream()
                .filter(tool -> callable.contains(tool.name))
                .forEach(tool -> schemas.put(tool.name, tool.supported()));
        Grammar calls = format.grammar(schemas, isParallel, isForced || isEither);
        return isEither ? Grammar.anyOf(List.of(answer, calls)) : calls;
    }

    ToolCallStream newStream(ToolFormat format) {
        return new ToolCallStream(format, callable, isForced);
    }
}
