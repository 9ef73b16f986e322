// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.text;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParseException;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Collection;
import java.util.List;
import java.util.Set;

/**
 * The format of chats that a model was trained with. Hugging Face's model directories define this
 * format as a Jinja template. The template is not run; these formats are recognised by their
 * control tokens.
 */
public enum ChatTemplate {
    /** Llama 3: {@code <|start_header_id|>role<|end_header_id|>}, text, {@code <|eot_id|>}. */
    LLAMA_3(List.of("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|begin_of_text|>")),
    /** ChatML: {@code <|im_start|>role}, text, {@code <|im_end|>}. */
    CHAT_ML(List.of("<|im_start|>", "<|im_end|>")),
    /** Lines such as {@code user: text}, for models without a chat template. */
    PLAIN(List.of()),
    /** A template that is not recognised; {@link #write} refuses chats. */
    UNKNOWN(List.of());

    /**
     * A message of a chat.
     *
     * @param role system, user or assistant
     * @param content the text
     */
    public record Message(String role, String content) {}

    private final List<String> controlTokens;

    ChatTemplate(List<String> controlTokens) {
        this.controlTokens = controlTokens;
    }

    /**
     * Recognises the template of a model.
     *
     * @param directory the model directory, with {@code chat_template.jinja} or a {@code
     *     chat_template} in {@code tokenizer_config.json}
     * @return the template; {@link #PLAIN} if the model has none
     * @throws IOException if a file cannot be read
     */
    public static ChatTemplate of(Path directory) throws IOException {
        if (directory == null) {
            throw new IllegalArgumentException("the model directory is null");
        }
        Path jinja = directory.resolve("chat_template.jinja");
        if (Files.exists(jinja)) {
            return recognise(Files.readString(jinja));
        }
        Path config = directory.resolve("tokenizer_config.json");
        if (!Files.exists(config)) {
            return PLAIN;
        }
        try (Reader reader = Files.newBufferedReader(config)) {
            JsonElement json = JsonParser.parseReader(reader);
            JsonElement template =
                    json instanceof JsonObject object ? object.get("chat_template") : null;
            return template == null || template.isJsonNull()
                    ? PLAIN
                    : recognise(
                            template.isJsonPrimitive() ? template.getAsString() : "" + template);
        } catch (JsonParseException e) {
            throw new IOException(config + " is not JSON: " + e.getMessage(), e);
        }
    }

    private static ChatTemplate recognise(String jinja) {
        for (ChatTemplate template : List.of(LLAMA_3, CHAT_ML)) {
            if (jinja.contains(template.controlTokens.get(0))) {
                return template;
            }
        }
        return UNKNOWN;
    }

    /**
     * {@return whether the tokenizer must add its special tokens to the written chat; false if the
     * template writes them}
     */
    public boolean addsSpecialTokens() {
        return this == PLAIN;
    }

    /**
     * Writes a chat as a prompt, up to the beginning of the assistant's next message.
     *
     * @param messages the messages
     * @param specialTokens the tokenizer's special tokens
     * @return the prompt
     * @throws IllegalArgumentException if a message contains a special token or a control token of
     *     this template, or the template is {@link #UNKNOWN}
     */
    public String write(List<Message> messages, Set<String> specialTokens) {
        if (this == UNKNOWN) {
            throw new IllegalArgumentException(
                    "the model's chat template is not supported; request a completion of a"
                            + " prompt instead");
        }
        StringBuilder text = new StringBuilder(this == LLAMA_3 ? "<|begin_of_text|>" : "");
        for (Message message : messages) {
            refuse(message, controlTokens);
            refuse(message, specialTokens);
            text.append(header(message.role));
            switch (this) {
                case LLAMA_3 -> text.append(message.content.strip()).append("<|eot_id|>");
                case CHAT_ML -> text.append(message.content).append("<|im_end|>\n");
                default -> text.append(' ').append(message.content).append('\n');
            }
        }
        return text.append(header("assistant")).toString();
    }

    private static void refuse(Message message, Collection<String> tokens) {
        for (String token : tokens) {
            if (message.content.contains(token)) {
                throw new IllegalArgumentException(
                        "a message must not contain the control token " + token);
            }
        }
    }

    private String header(String role) {
        return switch (this) {
            case LLAMA_3 -> "<|start_header_id|>" + role + "<|end_header_id|>\n\n";
            case CHAT_ML -> "<|im_start|>" + role + '\n';
            default -> role + ':';
        };
    }
}
