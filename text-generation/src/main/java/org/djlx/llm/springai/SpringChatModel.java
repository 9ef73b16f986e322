// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.springai;

import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CancellationException;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.stream.Stream;
import org.djlx.llm.ChatAnswer;
import org.djlx.llm.ChatGeneration;
import org.djlx.llm.ChatRequest;
import org.djlx.llm.FinishReason;
import org.djlx.llm.GenerationRequest;
import org.djlx.llm.sampling.Grammar;
import org.djlx.llm.text.AnswerStream.Part;
import org.djlx.llm.text.ChatTemplate;
import org.djlx.llm.text.ChatTools;
import org.djlx.llm.text.ToolCall;
import org.djlx.nativeops.host.Required;
import org.springframework.ai.chat.messages.AssistantMessage;
import org.springframework.ai.chat.messages.Message;
import org.springframework.ai.chat.messages.ToolResponseMessage;
import org.springframework.ai.chat.metadata.ChatGenerationMetadata;
import org.springframework.ai.chat.metadata.ChatResponseMetadata;
import org.springframework.ai.chat.metadata.DefaultUsage;
import org.springframework.ai.chat.model.ChatModel;
import org.springframework.ai.chat.model.ChatResponse;
import org.springframework.ai.chat.model.Generation;
import org.springframework.ai.chat.prompt.ChatOptions;
import org.springframework.ai.chat.prompt.Prompt;
import org.springframework.ai.content.MediaContent;
import org.springframework.ai.model.tool.StructuredOutputChatOptions;
import org.springframework.ai.model.tool.ToolCallingChatOptions;
import org.springframework.ai.tool.definition.ToolDefinition;
import reactor.core.publisher.Flux;
import reactor.core.publisher.FluxSink;
import reactor.core.scheduler.Schedulers;

/**
 * A {@link org.djlx.llm.ChatModel} as Spring AI's {@link ChatModel}. Supports text, reasoning (the
 * metadata {@value #REASONING} of an assistant's message), tools and their responses, and the JSON
 * schema of {@link StructuredOutputChatOptions}.
 *
 * <pre>{@code
 * try (SpringChatModel model = SpringChatModel.of("Qwen/Qwen3-0.6B")) {
 *     String answer = model.call("Hello");
 * }
 * }</pre>
 *
 * <ul>
 *   <li>Tool calls are returned, not executed: {@code ChatClient} executes them.
 *   <li>A sampling option comes from the prompt, else from the defaults, else from the model.
 *   <li>Tools come from the prompt's options, or from the defaults if those options have no tools
 *       by their type. The JSON schema comes from the prompt's options. A prompt without options
 *       has the defaults.
 *   <li>Cancelling a {@code Flux} or interrupting {@code call} cancels the answer. A {@code Flux}
 *       generates on Reactor's elastic threads, once for each subscriber.
 *   <li>Exceptions are those of {@link org.djlx.llm.ChatModel#submit}.
 *   <li>Thread-safe. {@link #close} closes the model and its generator.
 * </ul>
 */
public final class SpringChatModel implements ChatModel, AutoCloseable {

    /** The key of the reasoning in the metadata of an assistant's message. */
    public static final String REASONING = "reasoningContent";

    private final org.djlx.llm.ChatModel model;
    private final ChatOptions defaults;

    /** Creates a model without defaults other than the model's own. */
    public SpringChatModel(org.djlx.llm.ChatModel model) {
        this(model, ToolCallingChatOptions.builder().build());
    }

    /**
     * Creates a model.
     *
     * @param defaults for options that a prompt leaves out; their model name is accepted in prompts
     */
    public SpringChatModel(org.djlx.llm.ChatModel model, ChatOptions defaults) {
        this.model = Required.argument("SpringChatModel: model", model);
        this.defaults = Required.argument("SpringChatModel: defaults", defaults);
    }

    /**
     * Loads a model, as {@link org.djlx.llm.ChatModel#of(String)}.
     *
     * @param model a directory, or a name on a Hugging Face hub, such as Qwen/Qwen3-0.6B
     */
    public static SpringChatModel of(String model) throws IOException {
        return new SpringChatModel(org.djlx.llm.ChatModel.of(model));
    }

    @Override
    public ChatOptions getOptions() {
        return defaults;
    }

    @Override
    public void close() {
        model.close();
    }

    @Override
    public ChatResponse call(Prompt prompt) {
        try {
            ChatAnswer answer = model.chat(converted(prompt));
            return response(answer, answer.content(), answer.reasoning());
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new CancellationException("interrupted while waiting for an answer");
        }
    }

    /**
     * Streams text and reasoning while they are generated. The last response has the tool calls and
     * the metadata.
     */
    @Override
    public Flux<ChatResponse> stream(Prompt prompt) {
        ChatRequest request = converted(prompt);
        return Flux.<ChatResponse>create(sink -> generate(request, sink))
                .subscribeOn(Schedulers.boundedElastic());
    }

    private void generate(ChatRequest request, FluxSink<ChatResponse> sink) {
        ChatGeneration generation = model.submit(request);
        sink.onDispose(generation::cancel); // Does nothing after a complete answer.
        try {
            List<Part> parts;
            while ((parts = generation.next()) != null) {
                for (Part part : parts) {
                    if (!part.content().isEmpty() || !part.reasoning().isEmpty()) {
                        sink.next(partial(part));
                    }
                }
            }
            if (!sink.isCancelled()) {
                sink.next(response(generation.answer(), "", ""));
                sink.complete();
            }
        } catch (InterruptedException e) { // by Reactor, if the subscriber cancels
            Thread.currentThread().interrupt();
            sink.error(new CancellationException("interrupted while waiting for an answer"));
        }
    }

    private static ChatResponse partial(Part part) {
        return new ChatResponse(
                List.of(new Generation(message(part.content(), part.reasoning(), List.of()))));
    }

    private ChatResponse response(ChatAnswer answer, String content, String reasoning) {
        String called = answer.calls().isEmpty() ? "STOP" : "TOOL_CALLS";
        boolean isCut = answer.finishReason() == FinishReason.LENGTH;
        ChatGenerationMetadata end =
                ChatGenerationMetadata.builder().finishReason(isCut ? "LENGTH" : called).build();
        return new ChatResponse(
                List.of(new Generation(message(content, reasoning, answer.calls()), end)),
                ChatResponseMetadata.builder()
                        .id("chatcmpl-" + UUID.randomUUID())
                        .model(model.name())
                        .usage(new DefaultUsage(answer.promptTokens(), answer.generatedTokens()))
                        .build());
    }

    private static AssistantMessage message(
            String content, String reasoning, List<ToolCall> calls) {
        return AssistantMessage.builder()
                .content(content)
                .properties(reasoning.isEmpty() ? Map.of() : Map.of(REASONING, reasoning))
                .toolCalls(calls.stream().map(SpringChatModel::call).toList())
                .build();
    }

    private static AssistantMessage.ToolCall call(ToolCall call) {
        return new AssistantMessage.ToolCall(call.id(), "function", call.name(), call.arguments());
    }

    private ChatRequest converted(Prompt prompt) {
        ChatOptions options = prompt.getOptions() == null ? defaults : prompt.getOptions();
        String name = options.getModel();
        if (name != null && !name.equals(model.name()) && !name.equals(defaults.getModel())) {
            throw new IllegalArgumentException(
                    "unknown model '" + name + "'; this is '" + model.name() + "'");
        }
        ChatRequest.Builder builder =
                ChatRequest.builder().optGeneration(generation -> setOptions(options, generation));
        prompt.getInstructions().stream()
                .flatMap(SpringChatModel::messages)
                .forEach(builder::addMessage);
        ChatOptions withTools = options instanceof ToolCallingChatOptions ? options : defaults;
        if (withTools instanceof ToolCallingChatOptions tools && tools.getToolCallbacks() != null) {
            tools.getToolCallbacks()
                    .forEach(callback -> builder.addTool(tool(callback.getToolDefinition())));
        }
        return builder.build();
    }

    private void setOptions(ChatOptions options, GenerationRequest.Builder generation) {
        set(options, ChatOptions::getTemperature, generation::optTemperature);
        set(options, ChatOptions::getTopP, generation::optTopP);
        set(options, ChatOptions::getTopK, generation::optTopK);
        set(options, ChatOptions::getFrequencyPenalty, generation::optFrequencyPenalty);
        set(options, ChatOptions::getPresencePenalty, generation::optPresencePenalty);
        set(options, ChatOptions::getMaxTokens, generation::optMaxTokens);
        set(options, ChatOptions::getStopSequences, generation::optStopStrings);
        if (options instanceof StructuredOutputChatOptions structured
                && structured.getOutputSchema() != null) {
            generation.optGrammar(Grammar.jsonSchema(schema(structured.getOutputSchema())));
        }
    }

    private <T> void set(ChatOptions options, Function<ChatOptions, T> value, Consumer<T> option) {
        Stream.of(options, defaults)
                .flatMap(each -> Stream.ofNullable(value.apply(each)))
                .findFirst()
                .ifPresent(option);
    }

    private static JsonObject schema(String json) {
        return JsonParser.parseString(json).getAsJsonObject();
    }

    private static ChatTools.Tool tool(ToolDefinition tool) {
        return new ChatTools.Tool(tool.name(), tool.description(), schema(tool.inputSchema()));
    }

    private static Stream<ChatTemplate.Message> messages(Message message) {
        if (message instanceof MediaContent content && !content.getMedia().isEmpty()) {
            throw new IllegalArgumentException(
                    "media in a message are not supported; the model reads text only");
        }
        if (message instanceof ToolResponseMessage results) {
            return results.getResponses().stream()
                    .map(result -> ChatTemplate.Message.tool(result.id(), result.responseData()));
        }
        if (message instanceof AssistantMessage answer) {
            List<ToolCall> calls =
                    answer.getToolCalls().stream()
                            .map(call -> new ToolCall(call.id(), call.name(), call.arguments()))
                            .toList();
            Object reasoning = answer.getMetadata().get(REASONING);
            return Stream.of(
                    ChatTemplate.Message.assistant(
                            answer.getText(), reasoning == null ? null : "" + reasoning, calls));
        }
        return Stream.of(
                new ChatTemplate.Message(message.getMessageType().getValue(), message.getText()));
    }
}
