// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import com.google.gson.JsonObject;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Supplier;
import java.util.stream.Stream;
import org.djlx.llm.GenerationRequest;
import org.djlx.llm.TextGenerator;
import org.djlx.llm.sampling.Grammar;
import org.djlx.llm.text.AnswerParts;
import org.djlx.llm.text.ChatFormat;
import org.djlx.llm.text.ChatTemplate;
import org.djlx.llm.text.ChatTools;
import org.djlx.llm.text.ContextLengthException;
import org.djlx.llm.text.ReasoningFormat;
import org.djlx.llm.text.TextTokenizer;
import org.djlx.llm.text.ToolCall;
import org.djlx.llm.text.ToolFormat;
import org.djlx.nativeops.host.Required;

/**
 * Reads requests for one model: OpenAI's <a
 * href="https://platform.openai.com/docs/api-reference/chat">chat completions</a> and <a
 * href="https://platform.openai.com/docs/api-reference/completions">completions</a> and <a
 * href="https://platform.openai.com/docs/api-reference/responses">responses</a>, and DJL Serving's
 * <a
 * href="https://docs.djl.ai/master/docs/serving/serving/docs/lmi/user_guides/lmi_input_output_schema.html">text
 * generation</a>. Unknown options are errors, not ignored. Thread-safe.
 */
public final class TextApi {

    /** OpenAI's code of errors about prompts that are too long. */
    private static final String CONTEXT_LENGTH = "context_length_exceeded";

    private static final List<String> EFFORTS =
            List.of("none", "minimal", "low", "medium", "high", "xhigh", "max");
    private static final List<String> TEXTS = // types of the parts of a content
            List.of("text", "input_text", "output_text", "reasoning_text", "summary_text");
    private static final List<String> THINKING = List.of("enable_thinking", "thinking");
    private static final int DEFAULT_COMPLETION = 16; // OpenAI's
    private static final int DEFAULT_INVOCATION = 30; // DJL Serving's

    /** Parameters of LMI that do not change the answer; see {@link OpenAiOptions#neutral}. */
    private static final Map<String, String[]> INVOCATION_NEUTRAL =
            Map.of(
                    "n", new String[] {"1"},
                    "best_of", new String[] {"1"},
                    "num_beams", new String[] {"1"},
                    "early_stopping", new String[] {"false"},
                    "length_penalty", new String[] {"1", "1.0"},
                    "min_length", new String[] {"0", "1"},
                    "skip_special_tokens", new String[] {"true"},
                    "spaces_between_special_tokens", new String[] {},
                    "include_stop_str_in_output", new String[] {"false"});

    /** The options that a response repeats, with OpenAI's defaults. */
    private static final String RESPONSE_SETTINGS =
            """
            {"instructions": null, "max_output_tokens": null, "metadata": {},
            "parallel_tool_calls": true, "previous_response_id": null,
            "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [],
            "truncation": "disabled"}\
            """;

    private volatile String model;
    private final Set<String> names = ConcurrentHashMap.newKeySet(); // of requests
    private final TextGenerator generator;
    private final TextTokenizer tokenizer;
    private final ChatFormat format;
    private final LogProbabilities logProbabilities;

    /**
     * Creates an API; {@code model} is the name for clients. The caller closes the generator.
     *
     * @throws IllegalArgumentException if an argument is null, or the model has no tokenizer
     */
    public TextApi(String model, TextGenerator generator, ChatTemplate template) {
        this(model, generator, template, null, null);
    }

    /**
     * As the other constructor, for a model that calls tools and reasons in formats of its own;
     * null for those that the template knows.
     */
    public TextApi(
            String model,
            TextGenerator generator,
            ChatTemplate template,
            ToolFormat toolFormat,
            ReasoningFormat reasoning) {
        rename(model);
        this.generator = Required.argument("TextApi: generator", generator);
        Required.argument("TextApi: template", template);
        tokenizer =
                generator
                        .tokenizer()
                        .orElseThrow(
                                () ->
                                        new IllegalArgumentException(
                                                "the model " + model + " has no tokenizer"));
        logProbabilities = new LogProbabilities(tokenizer);
        format = new ChatFormat(tokenizer, template, toolFormat, reasoning);
    }

    public String model() {
        return model;
    }

    /** Changes the name for clients. Requests may still give earlier names; answers repeat them. */
    public void rename(String name) {
        names.add(Required.argument("rename: name", name));
        model = name;
    }

    /**
     * Reads a request in any of the three schemas: {@code messages} make it a chat completion,
     * {@code inputs} DJL Serving's, otherwise it is a completion. All requests are JSON in UTF-8.
     *
     * @throws ApiException if the request is not valid. The error has the schema of the request, or
     *     DJL Serving's schema if the request is not a JSON object
     */
    public TextCall read(byte[] json) {
        JsonOptions options = parseInvocation(json);
        if (options.has("messages")) {
            return chat(options);
        }
        return options.has("inputs") ? invocation(options) : completion(options);
    }

    /**
     * Reads a request for a chat completion.
     *
     * @throws ApiException if the request is not valid
     */
    public TextCall chat(byte[] json) {
        return chat(JsonOptions.parse(json));
    }

    private TextCall chat(JsonOptions json) {
        String name = prepare(json);
        boolean streamed = json.flag("stream", false);
        boolean usage = usage(json, streamed);
        GenerationRequest.Builder builder = OpenAiOptions.read(json);
        chooseAdapter(name, builder);
        boolean listed = json.flag("logprobs", false);
        int top = topLogProbabilities(json, "top_logprobs");
        if (top > 0 && !listed) {
            throw json.wrong("logprobs", "true if 'top_logprobs' is set");
        }
        int choices = OpenAiOptions.choices(json, 1);
        if (json.has("max_tokens") && json.has("max_completion_tokens")) {
            throw json.wrong("max_tokens", "left out beside 'max_completion_tokens', its new name");
        }
        String most = json.has("max_tokens") ? "max_tokens" : "max_completion_tokens";
        json.neutral("echo", "false");
        json.neutral("continue_final_message", "false");
        json.neutral("add_special_tokens", "false");
        ChatTools tools = tools(json);
        Grammar grammar = OpenAiOptions.grammar(json);
        Supplier<AnswerParts> parts =
                readPrompt(
                        json,
                        "messages",
                        messages(json, "messages"),
                        tools,
                        grammar,
                        most,
                        builder);
        json.requireNoOthers();
        return new TextCall(
                OpenAiOptions.build(builder.optTopLogProbabilities(top), json, choices),
                new OpenAiAnswer(
                        true,
                        streamed,
                        usage,
                        Collections.nCopies(choices, ""),
                        choices,
                        listed ? logProbabilities : null,
                        parts,
                        name,
                        false),
                most);
    }

    /**
     * Encodes messages, and sets the prompt, the grammar and the maximum number of new tokens.
     * Returns the parts of an answer.
     */
    private Supplier<AnswerParts> readPrompt(
            JsonOptions json,
            String of,
            List<ChatTemplate.Message> messages,
            ChatTools tools,
            Grammar content,
            String maxTokensName,
            GenerationRequest.Builder builder) {
        Grammar answer = OpenAiOptions.grammar(json, "tools", () -> format.grammar(tools, content));
        long maxTokens = json.integer(maxTokensName, 1, Integer.MAX_VALUE, 0);
        int[] prompt = encode(json, of, messages, tools, maxTokensName);
        builder.setPromptTokens(prompt);
        long left = Math.max(1, generator.maxLength() - prompt.length);
        builder.optMaxTokens((int) (maxTokens == 0 ? left : maxTokens));
        try {
            builder.optGrammar(format.grammar(prompt, tools, answer));
        } catch (IllegalArgumentException e) {
            throw ApiException.badRequest(null, e.getMessage());
        }
        boolean included = json.flag("include_reasoning", true);
        return () -> format.newParts(prompt, tools, included);
    }

    /**
     * Returns the variables of the chat template. How much to reason is the variable {@code
     * reasoning_effort}, and whether to is {@code enable_thinking}, or {@code thinking} in some
     * templates.
     */
    private Map<String, Object> variables(JsonOptions json) {
        Map<String, Object> variables = new HashMap<>(json.object("chat_template_kwargs").values());
        JsonOptions nested = json.object("reasoning");
        nested.neutral("summary");
        nested.neutral("generate_summary");
        boolean isNested = nested.has("effort");
        JsonOptions holder = isNested ? nested : json;
        String name = isNested ? "effort" : "reasoning_effort";
        String effort = holder.text(name, null);
        if (effort != null && !EFFORTS.contains(effort)) {
            throw holder.wrong(name, "one of " + EFFORTS);
        }
        nested.requireNoOthers();
        boolean isKnown = THINKING.stream().anyMatch(format.template()::reads);
        if (json.has("enable_thinking") && !isKnown) {
            throw json.wrong("enable_thinking", "left out: the model's template does not read it");
        }
        if (effort == null && !json.has("enable_thinking")) {
            return variables;
        }
        boolean thinks = json.flag("enable_thinking", !"none".equals(effort));
        THINKING.forEach(variable -> variables.putIfAbsent(variable, thinks));
        boolean isRead = format.template().reads("reasoning_effort");
        if (thinks && effort != null && !isRead && !isKnown && format.reasoning().isEmpty()) {
            throw holder.wrong(name, "\"none\"; other values are not supported by this model");
        }
        if (effort != null && isRead) {
            variables.putIfAbsent("reasoning_effort", effort);
        }
        return variables;
    }

    private int[] encode(
            JsonOptions json,
            String of,
            List<ChatTemplate.Message> messages,
            ChatTools tools,
            String maxTokensName) {
        boolean generation = json.flag("add_generation_prompt", true);
        Map<String, Object> options = variables(json);
        if (tools != null && !format.template().takesTools()) {
            throw ApiException.badRequest(
                    "tools",
                    "the model's chat template does not read tools: leave them out, or describe"
                            + " them in a message");
        }
        try {
            return format.encode(messages, generation, options, tools, generator.maxLength());
        } catch (ContextLengthException e) {
            throw tooLong(e, of, maxTokensName);
        } catch (IllegalArgumentException e) {
            throw ApiException.badRequest(of, e.getMessage());
        }
    }

    static ApiException tooLong(ContextLengthException e, String option, String maxTokensName) {
        return ApiException.badRequest(option, e.text(maxTokensName)).withCode(CONTEXT_LENGTH);
    }

    private static int topLogProbabilities(JsonOptions json, String name) {
        return (int) json.integer(name, 0, GenerationRequest.MAX_TOP_LOG_PROBABILITIES, 0);
    }

    private static List<ChatTemplate.Message> messages(JsonOptions json, String name) {
        return json.objects(name).stream().map(TextApi::message).toList();
    }

    private static ChatTemplate.Message message(JsonOptions json) {
        json.neutral("name");
        json.neutral("annotations", "[]");
        String role = json.text("role", "");
        if (role.equals("developer")) {
            role = "system";
        }
        if (!List.of("system", "user", "assistant", "tool").contains(role)) {
            throw json.wrong("role", "system, developer, user, assistant or tool");
        }
        String content = content(json, "content");
        List<ToolCall> calls = List.of();
        if (role.equals("assistant") && !json.isEmpty("tool_calls")) {
            calls = json.objects("tool_calls").stream().map(TextApi::call).toList();
        } else {
            json.neutral("tool_calls", "[]");
        }
        String thought = json.text("reasoning_content", json.text("reasoning", null));
        ChatTemplate.Message message =
                switch (role) {
                    case "assistant" -> ChatTemplate.Message.assistant(content, thought, calls);
                    case "tool" ->
                            ChatTemplate.Message.tool(json.text("tool_call_id", ""), content);
                    default -> new ChatTemplate.Message(role, content);
                };
        if (content == null && (message.more().isEmpty() || role.equals("tool"))) {
            throw json.wrong("content", "a string or an array of texts");
        }
        json.requireNoOthers();
        return message;
    }

    /** Reads a text or the texts of an array; null if there is none. */
    private static String content(JsonOptions json, String name) {
        if (!json.isArray(name)) {
            return json.text(name, null);
        }
        StringBuilder text = new StringBuilder();
        for (JsonOptions part : json.objects(name)) {
            if (!TEXTS.contains(part.text("type", ""))) {
                throw part.wrong("type", "text");
            }
            part.neutral("annotations", "[]");
            part.neutral("logprobs");
            part.neutral("parsed");
            text.append(part.text("text", ""));
            part.requireNoOthers();
        }
        return text.toString();
    }

    /**
     * Reads the items of a response's input. As in chats, an assistant's message has its calls: of
     * the items that follow it, or of its own.
     */
    private static List<ChatTemplate.Message> items(JsonOptions json, String name) {
        List<ChatTemplate.Message> messages = new ArrayList<>();
        for (JsonOptions item : json.objects(name)) {
            String type = item.text("type", "message");
            item.neutral("id");
            item.neutral("status");
            item.neutral("parsed_arguments"); // of the npm client, as "parsed" of texts
            switch (type) {
                case "message" -> addItem(messages, message(item));
                case "reasoning" -> {
                    item.neutral("encrypted_content");
                    String kept = item.isEmpty("content") ? "summary" : "content";
                    item.neutral("summary");
                    String thought = item.isEmpty(kept) ? "" : content(item, kept);
                    messages.add(ChatTemplate.Message.assistant(null, thought, List.of()));
                }
                case "function_call" -> {
                    List<ToolCall> calls = List.of(call(item, item, "call_id"));
                    addItem(messages, ChatTemplate.Message.assistant(null, null, calls));
                }
                case "function_call_output" -> {
                    String id = item.text("call_id", "");
                    String output = content(item, "output");
                    messages.add(ChatTemplate.Message.tool(id, output == null ? "" : output));
                }
                default ->
                        throw item.wrong(
                                "type",
                                "message, reasoning, function_call or function_call_output; no"
                                    + " items are stored, so send them all, with 'store' false");
            }
            item.requireNoOthers();
        }
        return messages;
    }

    /** Adds a message, or adds it to the assistant's message before: its reasoning or calls. */
    private static void addItem(List<ChatTemplate.Message> messages, ChatTemplate.Message message) {
        int last = messages.size() - 1;
        boolean follows = last >= 0 && messages.get(last).role().equals("assistant");
        ChatTemplate.Message before = follows ? messages.get(last) : message;
        boolean isReasoning = before.content() == null && !before.more().containsKey("tool_calls");
        if (!message.role().equals("assistant")
                || !follows
                || message.content() != null && !isReasoning) {
            messages.add(message);
            return;
        }
        Map<String, Object> more = new LinkedHashMap<>(before.more());
        message.more()
                .forEach(
                        (name, value) ->
                                more.merge(name, value, (old, added) -> concat(old, added)));
        String content = message.content() == null ? before.content() : message.content();
        messages.set(last, new ChatTemplate.Message("assistant", content, more));
    }

    private static Object concat(Object before, Object added) {
        return before instanceof List<?> list
                ? Stream.concat(list.stream(), ((List<?>) added).stream()).toList()
                : added;
    }

    private static ToolCall call(JsonOptions json) {
        json.neutral("type", "\"function\"");
        json.neutral("index");
        ToolCall call = call(json, json.object("function"), "id");
        json.requireNoOthers();
        return call;
    }

    private static ToolCall call(JsonOptions json, JsonOptions function, String idName) {
        String name = function.text("name", "");
        if (name.isEmpty()) {
            throw function.wrong("name", "the name of a tool");
        }
        ToolCall call = new ToolCall(json.text(idName, ""), name, function.text("arguments", ""));
        try {
            call.entry();
        } catch (IllegalArgumentException e) {
            throw function.wrong("arguments", "a JSON object in a string: " + e.getMessage());
        }
        function.requireNoOthers();
        return call;
    }

    private ChatTools tools(JsonOptions json) {
        return Tools.read(json, format, "function");
    }

    /**
     * Reads a request for a <a
     * href="https://platform.openai.com/docs/api-reference/responses">response</a>, OpenAI's newer
     * schema of chats. Responses are not stored: each request has the whole chat.
     *
     * @throws ApiException if the request is not valid
     */
    public TextCall response(byte[] utf8) {
        JsonOptions json = JsonOptions.parse(utf8);
        String name = prepare(json);
        boolean streamed = json.flag("stream", false);
        usage(json, streamed);
        GenerationRequest.Builder builder = OpenAiOptions.read(json);
        chooseAdapter(name, builder);
        boolean listed =
                json.texts("include", JsonOptions.MAX_STRINGS)
                        .contains("message.output_text.logprobs");
        int top = topLogProbabilities(json, "top_logprobs");
        builder.optTopLogProbabilities(listed ? top : 0);
        for (String unsupported : List.of("previous_response_id", "conversation", "prompt")) {
            json.neutral(unsupported, "null");
        }
        json.neutral("background", "false");
        json.neutral("truncation", "\"disabled\"");
        json.neutral("max_tool_calls"); // of OpenAI's own tools
        ChatTools tools = Tools.read(json, format, null);
        JsonOptions text = json.object("text");
        Grammar grammar =
                text.has("format") ? OpenAiOptions.format(text.object("format"), null) : null;
        text.neutral("verbosity", "\"medium\"");
        text.requireNoOthers();
        List<ChatTemplate.Message> messages = new ArrayList<>();
        String instructions = json.text("instructions", null);
        if (instructions != null) {
            messages.add(new ChatTemplate.Message("system", instructions));
        }
        if (json.isArray("input")) {
            messages.addAll(items(json, "input"));
        } else {
            messages.add(new ChatTemplate.Message("user", notEmpty(json, "input")));
        }
        Supplier<AnswerParts> parts =
                readPrompt(json, "input", messages, tools, grammar, "max_output_tokens", builder);
        json.requireNoOthers();
        GenerationRequest request = OpenAiOptions.build(builder);
        JsonObject settings = json.echo(RESPONSE_SETTINGS);
        settings.addProperty("temperature", request.temperature());
        settings.addProperty("top_p", request.topP());
        return new TextCall(
                List.of(request),
                new ResponsesAnswer(
                        streamed, settings, listed ? logProbabilities : null, parts.get(), name),
                "max_output_tokens");
    }

    /**
     * Answers vLLM's request for the tokens of a {@code prompt} or of {@code messages}.
     *
     * @throws ApiException if the request is not valid
     */
    public String tokenize(byte[] utf8) {
        JsonOptions json = JsonOptions.parse(utf8);
        prepare(json);
        json.neutral("return_token_strs", "false");
        boolean isChat = json.has("messages");
        boolean specialTokens = json.flag("add_special_tokens", !isChat);
        if (isChat && specialTokens) {
            throw json.wrong("add_special_tokens", "false; the chat template writes them");
        }
        int[] tokens =
                isChat
                        ? encode(
                                json,
                                "messages",
                                messages(json, "messages"),
                                tools(json),
                                "max_tokens")
                        : encode(notEmpty(json, "prompt"), specialTokens);
        json.requireNoOthers();
        JsonObject answer = JsonOptions.object("count", tokens.length);
        answer.addProperty("max_model_len", generator.maxLength());
        answer.add("tokens", JsonOptions.GSON.toJsonTree(tokens));
        answer.add("token_strs", null);
        return JsonOptions.GSON.toJson(answer);
    }

    private int[] encode(String prompt, boolean specialTokens) {
        try {
            ContextLengthException.check(prompt, tokenizer, generator.maxLength());
        } catch (ContextLengthException e) {
            throw tooLong(e, "prompt", "max_tokens");
        }
        return tokenizer.encode(prompt, specialTokens);
    }

    /**
     * Answers vLLM's request for the text of {@code tokens}, without special ones.
     *
     * @throws ApiException if the request is not valid
     */
    public String detokenize(byte[] utf8) {
        JsonOptions json = JsonOptions.parse(utf8);
        prepare(json);
        int[] tokens = json.integers("tokens", Integer.MAX_VALUE);
        json.requireNoOthers();
        return JsonOptions.GSON.toJson(JsonOptions.object("prompt", tokenizer.decode(tokens)));
    }

    /**
     * Reads a request for a completion of one or more prompts.
     *
     * @throws ApiException if the request is not valid
     */
    public TextCall completion(byte[] json) {
        return completion(JsonOptions.parse(json));
    }

    private TextCall completion(JsonOptions json) {
        String name = prepare(json);
        boolean streamed = json.flag("stream", false);
        boolean usage = usage(json, streamed);
        json.neutral("suffix", "\"\"");
        json.neutral("add_special_tokens", "true");
        OpenAiOptions.refuseTools(json);
        boolean echoes = json.flag("echo", false);
        boolean listed = json.has("logprobs");
        JsonOptions prompts = json.prompts("prompt", JsonOptions.MAX_PROMPTS);
        int choices = OpenAiOptions.choices(json, prompts.names().size());
        int most =
                (int)
                        json.integer(
                                "max_tokens",
                                echoes ? 0 : 1,
                                Integer.MAX_VALUE,
                                DEFAULT_COMPLETION);
        GenerationRequest.Builder builder =
                OpenAiOptions.read(json)
                        .optGrammar(OpenAiOptions.grammar(json))
                        .optTopLogProbabilities(topLogProbabilities(json, "logprobs"))
                        .optPromptLogProbabilities(echoes && listed)
                        .optMaxTokens(Math.max(1, most)); // A prompt is scored in decode steps.
        chooseAdapter(name, builder);
        List<GenerationRequest> requests = new ArrayList<>();
        List<String> echoed = new ArrayList<>();
        for (String prompt : prompts.names()) {
            String text;
            if (prompts.isArray(prompt)) {
                int[] tokens = prompts.integers(prompt, Integer.MAX_VALUE);
                if (tokens.length == 0) {
                    throw prompts.wrong(prompt, "a non-empty text or array of tokens");
                }
                builder.setPrompt(null).setPromptTokens(tokens);
                text = echoes ? tokenizer.decode(tokens) : "";
            } else {
                text = notEmpty(prompts, prompt);
                builder.setPromptTokens((int[]) null).setPrompt(text);
            }
            requests.addAll(OpenAiOptions.build(builder, json, choices));
            echoed.addAll(Collections.nCopies(choices, echoes ? text : ""));
        }
        json.requireNoOthers();
        return new TextCall(
                requests,
                new OpenAiAnswer(
                        false,
                        streamed,
                        usage,
                        echoed,
                        choices,
                        listed ? logProbabilities : null,
                        AnswerParts::new,
                        name,
                        most == 0),
                "max_tokens");
    }

    private static String notEmpty(JsonOptions json, String name) {
        String text = json.text(name, "");
        if (text.isEmpty()) {
            throw json.wrong(name, "a non-empty text");
        }
        return text;
    }

    private static boolean usage(JsonOptions json, boolean streamed) {
        JsonOptions stream = json.object("stream_options");
        boolean usage = stream.flag("include_usage", false);
        stream.neutral("include_obfuscation");
        stream.neutral("continuous_usage_stats", "false");
        stream.requireNoOthers();
        return usage && streamed;
    }

    /** Takes the model's sampling defaults, and returns the model's name in the request. */
    private String prepare(JsonOptions json) {
        json.setDefaults(generator.samplingDefaults().values());
        String requested = json.text("model", model);
        List<String> adapters = generator.adapters();
        if (!names.contains(requested) && !adapters.contains(requested)) {
            String more = adapters.isEmpty() ? "" : " with the adapters " + adapters;
            throw new ApiException(
                    404,
                    "model",
                    "unknown model '" + requested + "'; this server has '" + model + "'" + more);
        }
        return requested;
    }

    /** Generates with the adapter that a request names as its model, if it does. */
    private void chooseAdapter(String requested, GenerationRequest.Builder builder) {
        if (!names.contains(requested)) {
            builder.optAdapter(requested);
        }
    }

    /** {@return the names of the adapters that requests may give as their model} */
    public List<String> adapters() {
        return generator.adapters().stream().filter(name -> !names.contains(name)).toList();
    }

    /**
     * Answers vLLM's request to load the adapter {@code lora_name} from the directory {@code
     * lora_path}.
     *
     * @throws ApiException if the request is not valid, or the adapter is not of this model
     */
    public String loadAdapter(byte[] utf8) {
        JsonOptions json = JsonOptions.parse(utf8);
        String name = notEmpty(json, "lora_name");
        Path directory = Path.of(notEmpty(json, "lora_path"));
        json.neutral("load_inplace", "false");
        json.neutral("base_model_name");
        json.requireNoOthers();
        if (names.contains(name)) {
            throw json.wrong("lora_name", "another name than that of the model");
        }
        if (generator.adapters().contains(name)) {
            throw ApiException.badRequest(
                    "lora_name", "the adapter '" + name + "' has already been loaded");
        }
        if (!Files.isDirectory(directory)) {
            throw new ApiException(404, "lora_path", "there is no directory '" + directory + "'");
        }
        try {
            generator.loadAdapter(name, directory);
        } catch (IOException | IllegalArgumentException e) {
            throw ApiException.badRequest("lora_path", e.getMessage());
        }
        return changed(name, "added");
    }

    /**
     * Answers vLLM's request to remove the adapter {@code lora_name}; requests that run with it go
     * on.
     *
     * @throws ApiException if the request is not valid, or there is no such adapter
     */
    public String unloadAdapter(byte[] utf8) {
        JsonOptions json = JsonOptions.parse(utf8);
        String name = notEmpty(json, "lora_name");
        json.neutral("lora_int_id");
        json.requireNoOthers();
        try {
            generator.unloadAdapter(name);
        } catch (IllegalArgumentException e) {
            throw new ApiException(404, "lora_name", e.getMessage());
        }
        return changed(name, "removed");
    }

    private static String changed(String name, String how) {
        JsonObject answer = new JsonObject();
        String text = "Success: LoRA adapter '" + name + "' " + how + " successfully.";
        answer.addProperty("message", text);
        return JsonOptions.GSON.toJson(answer);
    }

    private static JsonOptions parseInvocation(byte[] json) {
        try {
            return JsonOptions.parse(json);
        } catch (ApiException e) {
            throw e.forInvocation();
        }
    }

    /**
     * Reads a request in DJL Serving's schema, or for a chat completion if there are {@code
     * messages}.
     *
     * @throws ApiException if the request is not valid; the error has the schema of the request
     */
    public TextCall invocationOrChat(byte[] utf8) {
        JsonOptions json = parseInvocation(utf8);
        return json.has("messages") ? chat(json) : invocation(json);
    }

    private TextCall invocation(JsonOptions json) {
        try {
            return readInvocation(json);
        } catch (ApiException e) {
            throw e.forInvocation();
        }
    }

    private TextCall readInvocation(JsonOptions json) {
        String name = prepare(json);
        boolean array = json.isArray("inputs");
        JsonOptions inputs = json.prompts("inputs", JsonOptions.MAX_PROMPTS);
        List<String> prompts = inputs.names().stream().map(each -> notEmpty(inputs, each)).toList();
        boolean streamed = json.flag("stream", false);
        if (streamed && array) {
            throw json.wrong(
                    "stream", "false if 'inputs' is an array; send a request for each input");
        }
        JsonOptions options = json.object("parameters");
        options.setDefaults(generator.samplingDefaults().values());
        boolean samples =
                options.flag(
                        "do_sample",
                        options.has("temperature") || options.has("top_k") || options.has("top_p"));
        GenerationRequest.Builder builder =
                OpenAiOptions.sampling(options, 1, samples ? 1 : 0)
                        .optIgnoreEndOfText(options.flag("ignore_eos_token", false))
                        .optMaxTokens(
                                (int)
                                        options.integer(
                                                "max_new_tokens",
                                                1,
                                                Integer.MAX_VALUE,
                                                DEFAULT_INVOCATION));
        chooseAdapter(name, builder);
        String stops = options.has("stop") ? "stop" : "stop_sequences";
        builder.optStopStrings(OpenAiOptions.stops(options, stops));
        if (options.flag("decoder_input_details", false)) {
            throw options.wrong(
                    "decoder_input_details",
                    "false; log probabilities of the prompt are not supported");
        }
        OpenAiOptions.neutral(options, INVOCATION_NEUTRAL);
        boolean details = options.flag("details", false);
        boolean echoes = options.flag("return_full_text", false);
        options.requireNoOthers();
        json.requireNoOthers();
        return new TextCall(
                prompts.stream().map(builder::setPrompt).map(OpenAiOptions::build).toList(),
                new InvocationAnswer(streamed, details, echoes, prompts, array),
                "max_new_tokens");
    }
}
