// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.text;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParseException;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.io.Reader;
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

/**
 * The format of chats that a model was trained with: the Jinja template of the model directory,
 * rendered as transformers' {@code apply_chat_template} does. Immutable.
 *
 * <p>A template may use the variables {@code messages}, {@code add_generation_prompt}, the special
 * tokens of {@code tokenizer_config.json} such as {@code bos_token}, and the options of a request;
 * and the functions {@code raise_exception} and {@code strftime_now}.
 *
 * <p>Special tokens in messages and in the options of a request become plain text, so a client
 * cannot end a message or begin one of another role.
 */
public final class ChatTemplate {

    /** Lines such as {@code user: text}, for models without a chat template. */
    public static final ChatTemplate PLAIN =
            new ChatTemplate(
                    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n"
                            + "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}",
                    Map.of(), true);

    private static final String DEFAULT_NAME = "default";

    /** Splits a special token in a client's text; from Unicode's private use area. */
    private static final String SPLIT = "\uE000";

    private final String source;
    private final Map<String, String> specialTokens;
    private final boolean isPlain;

    /**
     * A message of a chat.
     *
     * @param role system, user, assistant or tool
     * @param content the text; null if the message only calls tools
     * @param more further entries for the template, such as {@code tool_calls}
     */
    public record Message(String role, String content, Map<String, Object> more) {

        /**
         * Creates a message that is only text.
         *
         * @param role system, user, assistant or tool
         * @param content the text
         */
        public Message(String role, String content) {
            this(role, content, Map.of());
        }
    }

    /**
     * Creates a template.
     *
     * @param jinja the template in Jinja2
     * @param specialTokens the variables for special tokens, such as {@code bos_token}, with their
     *     text
     * @throws IllegalArgumentException if an argument is null
     */
    public ChatTemplate(String jinja, Map<String, String> specialTokens) {
        this(jinja, specialTokens, false);
    }

    private ChatTemplate(String jinja, Map<String, String> specialTokens, boolean isPlain) {
        if (jinja == null || specialTokens == null) {
            throw new IllegalArgumentException("the chat template or its special tokens are null");
        }
        this.source = JinjaSource.rewrite(jinja);
        this.specialTokens = Map.copyOf(specialTokens);
        this.isPlain = isPlain;
    }

    /**
     * Reads the template of a model.
     *
     * @param directory the model directory, with {@code chat_template.jinja} or a {@code
     *     chat_template} in {@code tokenizer_config.json}; of several templates, the one named
     *     {@code default}
     * @return the template; {@link #PLAIN} if the model has none
     * @throws IOException if a file cannot be read
     */
    public static ChatTemplate of(Path directory) throws IOException {
        if (directory == null) {
            throw new IllegalArgumentException("the model directory is null");
        }
        Path json = directory.resolve("tokenizer_config.json");
        JsonObject config = config(json);
        Path file = directory.resolve("chat_template.jinja");
        String jinja = Files.exists(file) ? Files.readString(file) : template(config, json);
        return jinja == null ? PLAIN : new ChatTemplate(jinja, specialTokens(config));
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

    /** Returns the template in a configuration; null if there is none. */
    private static String template(JsonObject config, Path file) throws IOException {
        JsonElement template = config.get("chat_template");
        try {
            if (template instanceof JsonArray templates) {
                for (JsonElement each : templates) {
                    JsonObject named = each.getAsJsonObject();
                    if (named.get("name").getAsString().equals(DEFAULT_NAME)) {
                        return named.get("template").getAsString();
                    }
                }
                return null;
            }
            return template == null || template.isJsonNull() ? null : template.getAsString();
        } catch (RuntimeException e) { // A value is missing or has another type.
            throw new IOException(
                    file + ": chat_template must be a text or an array of names and templates", e);
        }
    }

    private static Map<String, String> specialTokens(JsonObject config) {
        Map<String, String> tokens = new HashMap<>();
        for (String name : config.keySet()) {
            JsonElement token = config.get(name);
            JsonElement text = token instanceof JsonObject object ? object.get("content") : token;
            if (name.endsWith("_token") && text != null && text.isJsonPrimitive()) {
                tokens.put(name, text.getAsString());
            }
        }
        return tokens;
    }

    /**
     * Encodes a chat as a prompt.
     *
     * @param messages the messages
     * @param addGenerationPrompt whether the prompt ends with the beginning of an assistant's
     *     message
     * @param options further variables of the template, such as {@code tools}: strings, numbers,
     *     booleans, lists and maps
     * @param tokenizer the model's tokenizer
     * @return the tokens
     * @throws IllegalArgumentException if the template refuses the chat or cannot be rendered
     */
    public int[] encode(
            List<Message> messages,
            boolean addGenerationPrompt,
            Map<String, Object> options,
            TextTokenizer tokenizer) {
        Set<String> special = tokenizer.specialTokens();
        List<Message> plain = new ArrayList<>();
        for (Message message : messages) {
            String content = message.content == null ? null : plain(message.content, special);
            Map<String, Object> more = new LinkedHashMap<>();
            message.more.forEach((name, value) -> more.put(name, plain(value, special)));
            plain.add(new Message(message.role, content, more));
        }
        Map<String, Object> plainOptions = new HashMap<>();
        options.forEach((name, value) -> plainOptions.put(name, plain(value, special)));
        String[] pieces = write(plain, addGenerationPrompt, plainOptions).split(SPLIT);
        return IntStream.range(0, pieces.length)
                .mapToObj(i -> tokenizer.encode(pieces[i], isPlain && i == 0))
                .flatMapToInt(Arrays::stream)
                .toArray();
    }

    /** Splits the special tokens in a text. */
    private static String plain(String text, Set<String> special) {
        String plain = text.replace(SPLIT, "\uFFFD");
        for (String token : special) {
            plain = plain.replace(token, token.charAt(0) + SPLIT + token.substring(1));
        }
        return plain;
    }

    /** Splits the special tokens in all texts of a value. */
    private static Object plain(Object value, Set<String> special) {
        if (value instanceof Map<?, ?> map) {
            Map<Object, Object> plain = new JinjaRuntime.Dictionary();
            map.forEach((key, each) -> plain.put(plain(key, special), plain(each, special)));
            return plain;
        }
        if (value instanceof List<?> list) {
            List<Object> plain = new ArrayList<>();
            list.forEach(each -> plain.add(plain(each, special)));
            return plain;
        }
        return value instanceof String text ? plain(text, special) : value;
    }

    /** Returns whether the template has a text. */
    boolean contains(String text) {
        return source.contains(text);
    }

    /** Writes a chat. Special tokens stay as they are. */
    String write(List<Message> messages, boolean addGenerationPrompt, Map<String, Object> options) {
        Map<String, Object> variables = new HashMap<>(specialTokens);
        variables.putAll(options);
        variables.put("add_generation_prompt", addGenerationPrompt);
        variables.put("strftime_now", true); // Templates test whether the function is defined.
        List<Map<String, Object>> list = new ArrayList<>();
        for (Message message : messages) {
            Map<String, Object> map = new LinkedHashMap<>();
            map.put("role", message.role);
            map.put("content", message.content);
            map.putAll(message.more);
            list.add(map);
        }
        variables.put("messages", list);
        return JinjaRuntime.render(source, variables);
    }
}
