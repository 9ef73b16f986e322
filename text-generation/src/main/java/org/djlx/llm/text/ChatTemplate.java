// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParseException;
import com.google.gson.JsonParser;
import com.google.gson.JsonPrimitive;
import java.io.IOException;
import java.io.Reader;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.IntStream;
import org.djlx.llm.text.template.Template;
import org.djlx.nativeops.host.Required;

/**
 * The format of chats that a model was trained with: the Jinja templates of the model directory,
 * rendered as transformers' {@code apply_chat_template} does. Immutable.
 *
 * <p>A template may use the variables {@code messages}, {@code tools}, {@code documents}, {@code
 * add_generation_prompt}, the special tokens of {@code tokenizer_config.json} such as {@code
 * bos_token}, and the options of a request; and the functions {@code raise_exception} and {@code
 * strftime_now}.
 *
 * <p>A client cannot end a message or begin one of another role: control tokens in messages and in
 * the options of a request stay text. A control token is an added token of the tokenizer that is
 * marked special, that stands in one of the model's templates, or that is {@code <think>}, {@code
 * <tool_call>}, {@code <tool_response>} or the end of one. Only in the content of an assistant's
 * message, control tokens that are not marked special are those tokens, because the model writes
 * them. While a template runs, the first character of such a text is another one; a template that
 * looks for a control token in a user's text does not find it.
 */
public final class ChatTemplate {

    /**
     * Lines such as {@code user: text}, after the names of tools, for models without a template.
     */
    public static final ChatTemplate PLAIN =
            new ChatTemplate(
                    Map.of(
                            ChatTemplate.DEFAULT,
                            "{% if tools %}tools: {{ tools|map(attribute='function.name')|join(',"
                                + " ') }}\n"
                                + "{% endif %}{% for message in messages %}{{ message.role }}: {{"
                                + " message.content }}\n"
                                + "{% endfor %}{% if add_generation_prompt %}assistant:{% endif"
                                + " %}"),
                    Map.of(),
                    true);

    private static final String DEFAULT = "default";
    private static final String TOOL_USE = "tool_use";
    private static final String TOOLS = "tools";
    private static final List<String> REASONING = // of a message, in the templates of models
            List.of("reasoning_content", "thinking");

    /** Control tokens that not every template has, as the model writes them. */
    private static final Set<String> KNOWN =
            Set.of(
                    "<think> </think> <tool_call> </tool_call> <tool_response> </tool_response>"
                            .split(" "));

    private final Map<String, Source> sources; // by name
    private final Map<String, String> specialTokens;
    private final boolean isPlain;
    private volatile Controls controls; // of the last tokenizer

    /** A template that is parsed when it is used first: a model may have one that is not valid. */
    private static final class Source {

        private final String jinja;
        private volatile Template template;

        private Source(String jinja) {
            this.jinja = jinja;
        }

        private Template template() {
            if (template == null) {
                template = Template.parse(jinja);
            }
            return template;
        }
    }

    /** The control tokens of a tokenizer: all, and those in an assistant's content. */
    private record Controls(TextTokenizer tokenizer, ControlTokens all, ControlTokens special) {}

    /**
     * A message of the role system, user, assistant or tool. {@code content} is null if it only
     * calls tools; {@code more} has further entries for the template, such as {@code tool_calls}.
     */
    public record Message(String role, String content, Map<String, Object> more) {

        /** Creates a message that is only text. */
        public Message(String role, String content) {
            this(role, content, Map.of());
        }

        public static Message system(String text) {
            return new Message("system", text);
        }

        public static Message user(String text) {
            return new Message("user", text);
        }

        /**
         * Creates an answer of the model; {@code content} is null if it only calls tools, {@code
         * reasoning} and {@code calls} may be null.
         */
        public static Message assistant(String content, String reasoning, List<ToolCall> calls) {
            Map<String, Object> more = new LinkedHashMap<>();
            if (calls != null && !calls.isEmpty()) {
                more.put("tool_calls", calls.stream().map(ToolCall::entry).toList());
            }
            if (reasoning != null) {
                REASONING.forEach(name -> more.put(name, reasoning));
            }
            return new Message("assistant", content, more);
        }

        /** Creates the result of the call of a tool with this id. */
        public static Message tool(String id, String result) {
            return new Message("tool", result, Map.of("tool_call_id", id));
        }
    }

    /**
     * Creates a template; {@code specialTokens} has the text of variables such as {@code
     * bos_token}.
     */
    public ChatTemplate(String jinja, Map<String, String> specialTokens) {
        this(Map.of(DEFAULT, Required.argument("the chat template", jinja)), specialTokens, false);
    }

    private ChatTemplate(
            Map<String, String> sources, Map<String, String> specialTokens, boolean isPlain) {
        this.sources = new HashMap<>();
        sources.forEach((name, jinja) -> this.sources.put(name, new Source(jinja)));
        this.specialTokens =
                Map.copyOf(Required.argument("ChatTemplate: specialTokens", specialTokens));
        this.isPlain = isPlain;
    }

    /**
     * Reads the templates of a model: {@code chat_template.jinja} and, by name, {@code
     * additional_chat_templates/NAME.jinja}; without these files, {@code chat_template} in {@code
     * tokenizer_config.json}, a template, or several in an object by name or in an array with
     * names. A chat with tools, even an empty list, takes the template named {@code tool_use} if
     * there is one, any other chat the one named {@code default}, as in transformers. Without any,
     * returns {@link #PLAIN}.
     */
    public static ChatTemplate of(Path directory) throws IOException {
        Path json =
                Required.argument("the model directory", directory)
                        .resolve("tokenizer_config.json");
        JsonObject config = config(json);
        Map<String, String> templates = files(directory);
        templates = templates.isEmpty() ? templates(config, json) : templates;
        return templates.isEmpty()
                ? PLAIN
                : new ChatTemplate(templates, specialTokens(config), false);
    }

    private static Map<String, String> files(Path directory) throws IOException {
        Map<String, String> templates = new HashMap<>();
        Path file = directory.resolve("chat_template.jinja");
        if (Files.exists(file)) {
            templates.put(DEFAULT, Files.readString(file));
        }
        Path others = directory.resolve("additional_chat_templates");
        if (Files.isDirectory(others)) {
            try (DirectoryStream<Path> paths = Files.newDirectoryStream(others, "*.jinja")) {
                for (Path path : paths) {
                    String name = path.getFileName().toString().replaceFirst("\\.jinja$", "");
                    templates.put(name, Files.readString(path));
                }
            }
        }
        return templates;
    }

    private static JsonObject config(Path file) throws IOException {
        if (!Files.exists(file)) {
            return new JsonObject();
        }
        try (Reader reader = Files.newBufferedReader(file)) {
            return JsonParser.parseReader(reader) instanceof JsonObject object
                    ? object
                    : new JsonObject();
        } catch (JsonParseException e) {
            throw new IOException(file + " is not JSON: " + e.getMessage(), e);
        }
    }

    private static Map<String, String> templates(JsonObject config, Path file) throws IOException {
        JsonElement template = config.get("chat_template");
        try {
            Map<String, String> templates = new HashMap<>();
            if (template instanceof JsonArray array) {
                for (JsonElement each : array) {
                    JsonObject named = each.getAsJsonObject();
                    templates.put(
                            named.get("name").getAsString(), named.get("template").getAsString());
                }
            } else if (template instanceof JsonObject object && object.size() > 0) {
                object.asMap().forEach((name, each) -> templates.put(name, each.getAsString()));
            } else if (template != null && !template.isJsonNull()) {
                templates.put(DEFAULT, template.getAsString());
            }
            return templates;
        } catch (RuntimeException e) { // A value is missing or has another type.
            throw new IOException(file + ": chat_template must be a text, or texts with names", e);
        }
    }

    private static Map<String, String> specialTokens(JsonObject config) {
        Map<String, String> tokens = new HashMap<>();
        for (String name : config.keySet()) {
            JsonElement token = config.get(name);
            JsonElement text = token instanceof JsonObject object ? object.get("content") : token;
            boolean isText = text instanceof JsonPrimitive primitive && primitive.isString();
            if (name.endsWith("_token") && isText) {
                tokens.put(name, text.getAsString());
            }
        }
        return tokens;
    }

    /**
     * Encodes a chat as a prompt, which may have more than {@code maxLength} tokens, and ends with
     * the beginning of an assistant's message if {@code addGenerationPrompt}.
     *
     * @param options further variables of the template, such as {@code tools}: strings, numbers,
     *     booleans, lists and maps
     * @param maxLength a prompt that certainly has more tokens is not encoded
     * @throws ContextLengthException if the rendered prompt is not encoded
     * @throws IllegalArgumentException if the template refuses the chat or cannot be rendered, or
     *     if there are tools and the template does not read them
     */
    public int[] encode(
            List<Message> messages,
            boolean addGenerationPrompt,
            Map<String, Object> options,
            TextTokenizer tokenizer,
            int maxLength) {
        Controls hidden = controls(tokenizer);
        List<Message> plain = new ArrayList<>();
        for (Message message : messages) {
            boolean isModels = message.role.equals("assistant");
            ControlTokens ofContent = isModels ? hidden.special : hidden.all;
            Map<String, Object> more = new LinkedHashMap<>();
            message.more.forEach((name, value) -> more.put(name, hidden.all.hide(value)));
            String content = message.content == null ? null : ofContent.hide(message.content);
            plain.add(new Message(hidden.all.hide(message.role), content, more));
        }
        Map<String, Object> plainOptions = new HashMap<>();
        options.forEach((name, value) -> plainOptions.put(name, hidden.all.hide(value)));
        String prompt = write(plain, addGenerationPrompt, plainOptions);
        ContextLengthException.check(prompt, tokenizer, maxLength);
        List<String> parts = hidden.all.parts(prompt);
        return IntStream.range(0, parts.size())
                .mapToObj(i -> tokenizer.encode(parts.get(i), isPlain && i == 0))
                .flatMapToInt(Arrays::stream)
                .toArray();
    }

    private Controls controls(TextTokenizer tokenizer) {
        Controls known = controls;
        if (known == null || known.tokenizer != tokenizer) {
            Set<String> special = tokenizer.specialTokens();
            List<String> all = new ArrayList<>(special);
            for (String token : tokenizer.addedTokens()) {
                // Words and spaces may be added tokens, too.
                boolean isName =
                        token.chars()
                                .allMatch(
                                        c ->
                                                Character.isLetterOrDigit(c)
                                                        || c <= ' '
                                                        || c == '\u2581');
                if (!special.contains(token)
                        && !isName
                        && (KNOWN.contains(token) || contains(token))) {
                    all.add(token);
                }
            }
            known =
                    new Controls(
                            tokenizer, new ControlTokens(all), new ControlTokens(special, all));
            controls = known;
        }
        return known;
    }

    boolean contains(String text) {
        return sources.values().stream().anyMatch(source -> source.jinja.contains(text));
    }

    /** {@return whether a chat with tools can be written: a template reads {@code tools}} */
    public boolean takesTools() {
        try {
            return source(true).template().names().contains(TOOLS);
        } catch (IllegalArgumentException e) { // encode says so
            return false;
        }
    }

    /** {@return whether a template reads a variable, such as {@code enable_thinking}} */
    public boolean reads(String variable) {
        try {
            return sources.values().stream()
                    .anyMatch(source -> source.template().names().contains(variable));
        } catch (IllegalArgumentException e) { // encode says so
            return false;
        }
    }

    private Source source(boolean hasTools) {
        Source source = hasTools ? sources.get(TOOL_USE) : null;
        source = source == null ? sources.get(DEFAULT) : source;
        Required.check(
                source != null,
                "the model has no chat template named default, only %s; tool_use is"
                        + " taken for chats with tools",
                sources.keySet());
        return source;
    }

    /** Writes a chat. Control tokens stay as they are. */
    String write(List<Message> messages, boolean addGenerationPrompt, Map<String, Object> options) {
        boolean hasTools = options.get(TOOLS) instanceof List<?> tools && !tools.isEmpty();
        Template template = source(options.get(TOOLS) != null).template(); // also for an empty list
        Required.check(
                !hasTools || template.names().contains(TOOLS),
                "the request has tools, but the model's chat template does not read"
                        + " them: leave them out, or describe them in a message");
        Map<String, Object> variables = new HashMap<>();
        variables.put(TOOLS, null); // as in transformers, which always defines these
        variables.put("documents", null);
        variables.putAll(specialTokens);
        variables.putAll(options);
        variables.put("add_generation_prompt", addGenerationPrompt);
        List<Map<String, Object>> list = new ArrayList<>();
        for (Message message : messages) {
            Map<String, Object> map = new LinkedHashMap<>();
            map.put("role", message.role);
            map.put("content", message.content);
            map.putAll(message.more);
            list.add(map);
        }
        variables.put("messages", list);
        return template.render(variables);
    }
}
