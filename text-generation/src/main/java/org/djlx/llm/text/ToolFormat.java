// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonObject;
import java.security.SecureRandom;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import org.djlx.llm.sampling.Grammar;
import org.djlx.nativeops.host.Required;

/** How a model writes calls of tools in its answer. */
public enum ToolFormat {
    /**
     * Llama 3: the answer is a call, {@code {"name": …, "parameters": {…}}}, perhaps after {@code
     * <|python_tag|>}; {@code ;} separates calls.
     */
    LLAMA3("<|python_tag|>", "", "", "parameters", "", "; ", "", 24),
    /**
     * Hermes and Qwen: a tag around each call, {@code <tool_call>{"name": …, "arguments":
     * {…}}</tool_call>}.
     */
    HERMES(
            "<tool_call>",
            "<tool_call>",
            "\n",
            "arguments",
            "\n</tool_call>",
            "\n<tool_call>",
            "",
            24),
    /** Mistral: an array of calls, {@code [TOOL_CALLS][{"name": …, "arguments": {…}}]}. */
    MISTRAL("[TOOL_CALLS]", "[", "", "arguments", "", ", ", "]", 9);

    private static final Map<String, ToolFormat> NAMES =
            new TreeMap<>(Map.of("llama3_json", LLAMA3, "hermes", HERMES, "mistral", MISTRAL));
    private static final String ID_CHARACTERS =
            "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    private static final SecureRandom RANDOM = new SecureRandom();
    private static final Gson GSON = new GsonBuilder().disableHtmlEscaping().create();

    private final String marker;
    private final String open; // before the first call
    private final String prefix; // of a call
    private final String argumentsKey;
    private final String suffix; // of a call
    private final String separator;
    private final String close; // after the last call
    private final int idLength;

    ToolFormat(
            String marker,
            String open,
            String prefix,
            String argumentsKey,
            String suffix,
            String separator,
            String close,
            int idLength) {
        this.marker = marker;
        this.open = open;
        this.prefix = prefix;
        this.argumentsKey = argumentsKey;
        this.suffix = suffix;
        this.separator = separator;
        this.close = close;
        this.idLength = idLength;
    }

    /**
     * {@return the format that a chat template asks for; empty if it does not take tools, or has
     * another format}
     */
    public static Optional<ToolFormat> of(ChatTemplate template) {
        Required.argument("the chat template", template);
        if (!template.takesTools()) {
            return Optional.empty();
        }
        for (ToolFormat format : List.of(MISTRAL, HERMES, LLAMA3)) {
            if (template.contains(format.marker)) {
                return Optional.of(format);
            }
        }
        return template.contains("\"parameters\": ") ? Optional.of(LLAMA3) : Optional.empty();
    }

    /** {@return the names of the formats, for {@link #named}} */
    public static Set<String> names() {
        return Collections.unmodifiableSet(NAMES.keySet());
    }

    /**
     * Finds a format by the name that vLLM's option {@code tool_call_parser} has for it: {@code
     * llama3_json}, {@code hermes} or {@code mistral}.
     *
     * @throws IllegalArgumentException if there is no such format
     */
    public static ToolFormat named(String name) {
        if (name != null && NAMES.containsKey(name)) {
            return NAMES.get(name);
        }
        throw new IllegalArgumentException(
                "unknown format of tool calls '" + name + "'; known are " + NAMES.keySet());
    }

    /** {@return the text that begins the calls; a special token in some vocabularies} */
    public String marker() {
        return marker;
    }

    /** {@return the text at the end of a prompt after which a forced call is written} */
    public String promptSuffix() {
        return this == MISTRAL ? marker : "";
    }

    /** {@return a new id for a call, as the model's template expects it} */
    public String newId() {
        StringBuilder id = new StringBuilder(this == MISTRAL ? "" : "call_");
        RANDOM.ints(idLength, 0, ID_CHARACTERS.length())
                .forEach(i -> id.append(ID_CHARACTERS.charAt(i)));
        return id.toString();
    }

    /**
     * Returns a grammar for answers that call tools.
     *
     * @param tools the JSON schema of the arguments of each tool, by name
     * @param parallel whether several calls are allowed
     * @param forced whether the answer has to be a call. Otherwise it may be text, and in {@link
     *     #HERMES} text may stand before the calls
     * @throws IllegalArgumentException if a schema is not supported; the message names the tool. Or
     *     if answers of {@link #MISTRAL} are not forced: its marker is a special token, which no
     *     grammar allows
     */
    public Grammar grammar(Map<String, JsonObject> tools, boolean parallel, boolean forced) {
        Required.check(tools != null && !tools.isEmpty(), "there are no tools");
        Required.check(
                forced || this != MISTRAL,
                "Mistral's format cannot limit calls that are not required");
        List<Grammar> calls = new ArrayList<>();
        tools.forEach(
                (name, schema) -> {
                    String head =
                            "{\"name\": " + GSON.toJson(name) + ", \"" + argumentsKey + "\": ";
                    Grammar arguments =
                            Required.naming(
                                    "the parameters of the tool " + name,
                                    () -> Grammar.jsonSchema(schema));
                    calls.add(Grammar.sequence(text(prefix + head), arguments, text("}" + suffix)));
                });
        Grammar call = Grammar.anyOf(calls);
        Grammar all = parallel ? call.separatedBy(separator) : call;
        if (forced) {
            return Grammar.sequence(text(open), all, text(close));
        }
        String any = "[\\s\\S]*";
        String marked = any + marker.replace("|", "\\|");
        if (this == HERMES) { // Text may stand before the first marker.
            Grammar first = Grammar.regex(marked, marked + "[\\s\\S]+");
            return Grammar.anyOf(
                    List.of(Grammar.regex(any, marked + any), Grammar.sequence(first, all)));
        }
        return Grammar.anyOf(List.of(Grammar.regex(any, marked + any + "|[^\\S]*\\{" + any), all));
    }

    private static Grammar text(String text) {
        return text.isEmpty() ? Grammar.regex("") : Grammar.choice(List.of(text));
    }
}
