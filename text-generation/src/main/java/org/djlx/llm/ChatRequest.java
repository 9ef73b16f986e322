// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;
import org.djlx.llm.text.ChatTemplate.Message;
import org.djlx.llm.text.ChatTools;
import org.djlx.nativeops.host.Required;

/**
 * The messages of a chat, and how a {@link ChatModel} answers them. Immutable.
 *
 * <pre>{@code
 * ChatRequest request =
 *         ChatRequest.builder()
 *                 .addSystem("Answer in one sentence.")
 *                 .addUser("Why is the sky blue?")
 *                 .optGeneration(generation -> generation.optTemperature(0).optMaxTokens(100))
 *                 .build();
 * }</pre>
 */
public final class ChatRequest {

    final List<Message> messages;
    final ChatTools tools; // null if the model may call none
    final Map<String, Object> variables;
    final Consumer<GenerationRequest.Builder> options;

    private ChatRequest(
            List<Message> messages,
            ChatTools tools,
            Map<String, Object> variables,
            Consumer<GenerationRequest.Builder> options) {
        this.messages = messages;
        this.tools = tools;
        this.variables = variables;
        this.options = options;
    }

    /** {@return a request of one message of the user} */
    public static ChatRequest of(String message) {
        return builder().addUser(message).build();
    }

    public static Builder builder() {
        return new Builder();
    }

    ChatRequest with(Consumer<GenerationRequest.Builder> more) {
        return new ChatRequest(messages, tools, variables, options.andThen(more));
    }

    /** Builds requests. Messages are in the order of the calls. */
    public static final class Builder {

        private final List<Message> messages = new ArrayList<>();
        private final List<ChatTools.Tool> tools = new ArrayList<>();
        private boolean forcesCall;
        private Map<String, Object> variables = Map.of();
        private Consumer<GenerationRequest.Builder> options = builder -> {};

        private Builder() {}

        /** Adds a system message, usually the first. */
        public Builder addSystem(String text) {
            return addMessage(Message.system(text));
        }

        public Builder addUser(String text) {
            return addMessage(Message.user(text));
        }

        /**
         * Adds a message, such as {@link ChatAnswer#message} of an earlier answer, or the
         * {@linkplain Message#tool result} of a call.
         */
        public Builder addMessage(Message message) {
            messages.add(message);
            return this;
        }

        /** Adds a tool that the model may call. */
        public Builder addTool(ChatTools.Tool tool) {
            tools.add(tool);
            return this;
        }

        /**
         * Adds a tool whose arguments are those of a record: {@link
         * org.djlx.llm.text.ToolCall#arguments(Class)}.
         */
        public Builder addTool(
                String name, String description, Class<? extends Record> parameters) {
            return addTool(new ChatTools.Tool(name, description, RecordSchema.of(parameters)));
        }

        /** Sets whether the answer has to be a call of a tool; default false. */
        public Builder optForcesCall(boolean forcesCall) {
            this.forcesCall = forcesCall;
            return this;
        }

        /**
         * Sets further variables of the chat template, such as {@code enable_thinking}; default
         * none.
         */
        public Builder optVariables(Map<String, Object> variables) {
            this.variables = variables;
            return this;
        }

        /**
         * Sets how the answer is generated: sampling parameters, stop conditions, a grammar. A
         * prompt that it sets is replaced by the messages.
         */
        public Builder optGeneration(Consumer<GenerationRequest.Builder> options) {
            this.options = options;
            return this;
        }

        /** Throws an {@link IllegalArgumentException} if there is no message, or a null. */
        public ChatRequest build() {
            Required.check(
                    !messages.isEmpty() && !messages.contains(null),
                    "chat request: messages must not be empty, and none null: %s",
                    messages);
            Required.argument("chat request: variables", variables);
            Required.argument("chat request: options", options);
            Required.check(
                    !tools.isEmpty() || !forcesCall, "chat request: forcesCall needs a tool");
            ChatTools all = tools.isEmpty() ? null : new ChatTools(List.copyOf(tools));
            return new ChatRequest(
                    List.copyOf(messages), forcesCall ? all.forced() : all, variables, options);
        }
    }
}
