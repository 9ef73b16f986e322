// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import com.google.gson.JsonObject;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.djlx.llm.text.ChatFormat;
import org.djlx.llm.text.ChatTools;
import org.djlx.llm.text.ToolFormat;

/** Reads the tools of a chat, and how the model may call them. */
final class Tools {

    private Tools() {}

    /**
     * Reads {@code tools} and {@code tool_choice}; null if there are none, or if none may be
     * called. {@code nested} names the object that describes a function; null if its entries stand
     * beside its type, as in responses.
     */
    static ChatTools read(JsonOptions json, ChatFormat format, String nested) {
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
        Map<String, ChatTools.Tool> declarations = new LinkedHashMap<>();
        for (JsonOptions tool : tools) {
            if (!tool.text("type", "").equals("function")) {
                throw tool.wrong("type", "function; other tools are not supported");
            }
            JsonOptions declared = nested == null ? tool : tool.object(nested);
            String name = declared.text("name", "");
            if (!name.matches("[A-Za-z0-9_.-]{1,64}") || declarations.containsKey(name)) {
                throw declared.wrong("name", "1 to 64 of A-Z, a-z, 0-9, _, . and -, and unique");
            }
            declared.text("description", "");
            boolean isStrict = declared.flag("strict", false);
            JsonObject parameters = declared.json("parameters");
            declared.requireNoOthers();
            Map<String, Object> described = declared.values();
            described.remove("type"); // if it is not nested
            declarations.put(name, new ChatTools.Tool(name, parameters, isStrict, described));
            tool.requireNoOthers();
        }
        if (choice.equals("none") || tools.isEmpty() && choice.equals("auto")) {
            return null;
        }
        if (function != null && !declarations.containsKey(function) || tools.isEmpty()) {
            throw json.wrong("tool_choice", "one of the tools: " + declarations.keySet());
        }
        if (format.tools().isEmpty()) {
            throw json.wrong(
                    "tools",
                    "left out: this model has no known format of tool calls. Start it with the"
                            + " option tool_call_parser (--tool-call-parser), one of "
                            + ToolFormat.names());
        }
        Set<String> callable = function == null ? declarations.keySet() : Set.of(function);
        return new ChatTools(
                List.copyOf(declarations.values()),
                callable,
                !choice.equals("auto"),
                isParallel && function == null);
    }
}
