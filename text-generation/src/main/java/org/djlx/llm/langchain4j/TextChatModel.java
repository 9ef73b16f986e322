// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.langchain4j;

import com.google.gson.Gson;
import com.google.gson.JsonObject;
import dev.langchain4j.agent.tool.ToolExecutionRequest;
import dev.langchain4j.agent.tool.ToolSpecification;
import dev.langchain4j.data.message.AiMessage;
import dev.langchain4j.data.message.ChatMessage;
import dev.langchain4j.data.message.Content;
import dev.langchain4j.data.message.SystemMessage;
import dev.langchain4j.data.message.TextContent;
import dev.langchain4j.data.message.ToolExecutionResultMessage;
import dev.langchain4j.data.message.UserMessage;
import dev.langchain4j.exception.HttpException;
import dev.langchain4j.exception.LangChain4jException;
import dev.langchain4j.exception.ModelNotFoundException;
import dev.langchain4j.exception.UnsupportedFeatureException;
import dev.langchain4j.internal.ExceptionMapper;
import dev.langchain4j.internal.InternalStreamingChatResponseHandlerUtils;
import dev.langchain4j.internal.JsonSchemaElementUtils;
import dev.langchain4j.internal.ToolCallBuilder;
import dev.langchain4j.model.chat.Capability;
import dev.langchain4j.model.chat.ChatModel;
import dev.langchain4j.model.chat.StreamingChatModel;
import dev.langchain4j.model.chat.listener.ChatModelListener;
import dev.langchain4j.model.chat.request.ChatRequest;
import dev.langchain4j.model.chat.request.ChatRequestParameters;
import dev.langchain4j.model.chat.request.ResponseFormat;
import dev.langchain4j.model.chat.request.ResponseFormatType;
import dev.langchain4j.model.chat.request.ToolChoice;
import dev.langchain4j.model.chat.request.json.JsonSchema;
import dev.langchain4j.model.chat.request.json.JsonSchemaElement;
import dev.langchain4j.model.chat.response.ChatResponse;
import dev.langchain4j.model.chat.response.PartialToolCall;
import dev.langchain4j.model.chat.response.StreamingChatResponseHandler;
import dev.langchain4j.model.chat.response.StreamingHandle;
import dev.langchain4j.model.output.FinishReason;
import dev.langchain4j.model.output.TokenUsage;
import java.io.IOException;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.CancellationException;
import java.util.concurrent.RejectedExecutionException;
import java.util.function.Consumer;
import org.djlx.llm.ChatAnswer;
import org.djlx.llm.ChatGeneration;
import org.djlx.llm.GenerationRequest;
import org.djlx.llm.sampling.Grammar;
import org.djlx.llm.text.AnswerStream.Part;
import org.djlx.llm.text.ChatTemplate.Message;
import org.djlx.llm.text.ChatTools;
import org.djlx.llm.text.ToolCall;
import org.djlx.nativeops.host.Required;

/**
 * A {@link org.djlx.llm.ChatModel} as LangChain4j's {@link ChatModel}, and with {@link #streaming}
 * as its {@link StreamingChatModel}. Supports text, reasoning, tools and tool results, and
 * structured output of {@code AiServices} by a JSON schema.
 *
 * <pre>{@code
 * try (TextChatModel model = TextChatModel.of("Qwen/Qwen3-0.6B")) {
 *     String answer = model.chat("Hello");
 * }
 * }</pre>
 *
 * <ul>
 *   <li>Errors: {@code InvalidRequestException} for an invalid request, {@code RateLimitException}
 *       for a full queue, {@code InternalServerException} for a failed generator.
 *   <li>Each streamed request has a thread, which runs its callbacks. A callback that blocks delays
 *       only this request.
 *   <li>Interrupting a thread in {@code chat} cancels its request.
 *   <li>Thread-safe. {@link #close} closes the model and its generator.
 * </ul>
 */
public final class TextChatModel implements ChatModel, AutoCloseable {

    private static final Gson GSON = new Gson();

    private static final StreamingChatResponseHandler IGNORED =
            new StreamingChatResponseHandler() {
                @Override
                public void onCompleteResponse(ChatResponse response) {}

                @Override
                public void onError(Throwable error) {}
            };

    private final org.djlx.llm.ChatModel model;
    private final ChatRequestParameters defaults;
    private final List<ChatModelListener> listeners;

    /** Creates a model without defaults other than the model's own, and without listeners. */
    public TextChatModel(org.djlx.llm.ChatModel model) {
        this(model, ChatRequestParameters.builder().build(), List.of());
    }

    /**
     * Creates a model.
     *
     * @param defaults for parameters that a request leaves out; their model name is accepted in
     *     requests
     * @param listeners receive requests, responses and errors
     */
    public TextChatModel(
            org.djlx.llm.ChatModel model,
            ChatRequestParameters defaults,
            List<ChatModelListener> listeners) {
        this.model = Required.argument("TextChatModel: model", model);
        this.defaults = Required.argument("TextChatModel: defaults", defaults);
        this.listeners = List.copyOf(Required.argument("TextChatModel: listeners", listeners));
    }

    /**
     * Loads a model, as {@link org.djlx.llm.ChatModel#of(String)}.
     *
     * @param model a directory, or a name on a Hugging Face hub, such as Qwen/Qwen3-0.6B
     */
    public static TextChatModel of(String model) throws IOException {
        return new TextChatModel(org.djlx.llm.ChatModel.of(model));
    }

    @Override
    public void close() {
        model.close();
    }

    @Override
    public ChatRequestParameters defaultRequestParameters() {
        return defaults;
    }

    @Override
    public List<ChatModelListener> listeners() {
        return listeners;
    }

    @Override
    public Set<Capability> supportedCapabilities() {
        return Set.of(Capability.RESPONSE_FORMAT_JSON_SCHEMA);
    }

    @Override
    public ChatResponse doChat(ChatRequest request) {
        try {
            return submit(converted(request), request.modelName(), IGNORED).await();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new CancellationException("interrupted while waiting for an answer");
        } catch (RuntimeException e) {
            throw mapped(e);
        }
    }

    /** {@return this model with streamed answers} */
    public StreamingChatModel streaming() {
        return new StreamingChatModel() {
            @Override
            public void doChat(ChatRequest request, StreamingChatResponseHandler handler) {
                org.djlx.llm.ChatRequest converted = converted(request);
                Thread thread =
                        new Thread(
                                () -> stream(converted, request.modelName(), handler),
                                "chat-model-stream");
                thread.setDaemon(true);
                thread.start();
            }

            @Override
            public ChatRequestParameters defaultRequestParameters() {
                return defaults;
            }

            @Override
            public List<ChatModelListener> listeners() {
                return listeners;
            }

            @Override
            public Set<Capability> supportedCapabilities() {
                return TextChatModel.this.supportedCapabilities();
            }
        };
    }

    private void stream(
            org.djlx.llm.ChatRequest request, String name, StreamingChatResponseHandler handler) {
        Response response = null;
        try {
            response = submit(request, name, handler);
            ChatResponse complete = response.await();
            InternalStreamingChatResponseHandlerUtils.onCompleteResponse(handler, complete);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        } catch (RuntimeException e) {
            if (response == null || !response.isCancelled()) {
                InternalStreamingChatResponseHandlerUtils.withLoggingExceptions(
                        () -> handler.onError(mapped(e)));
            }
        }
    }

    private static RuntimeException mapped(RuntimeException e) {
        int status = 500;
        if (e instanceof IllegalArgumentException) {
            status = 400;
        } else if (e instanceof RejectedExecutionException) {
            status = 429;
        } else if (e instanceof LangChain4jException) {
            return e;
        }
        // A cause would hide the status from the mapper.
        RuntimeException mapped =
                ExceptionMapper.DEFAULT.mapException(new HttpException(status, e.getMessage()));
        mapped.addSuppressed(e);
        return mapped;
    }

    private Response submit(
            org.djlx.llm.ChatRequest request, String name, StreamingChatResponseHandler handler) {
        String requested = name == null ? model.name() : name;
        if (!requested.equals(model.name()) && !requested.equals(defaults.modelName())) {
            throw new ModelNotFoundException(
                    "unknown model '" + requested + "'; this is '" + model.name() + "'");
        }
        return new Response(model.submit(request), requested, handler);
    }

    private static org.djlx.llm.ChatRequest converted(ChatRequest request) {
        org.djlx.llm.ChatRequest.Builder builder =
                org.djlx.llm.ChatRequest.builder()
                        .optGeneration(generation -> setOptions(request, generation))
                        .optForcesCall(request.toolChoice() == ToolChoice.REQUIRED);
        request.messages().forEach(message -> builder.addMessage(message(message)));
        if (request.toolChoice() != ToolChoice.NONE) {
            request.toolSpecifications().forEach(tool -> builder.addTool(tool(tool)));
        }
        return builder.build();
    }

    private static void setOptions(ChatRequest request, GenerationRequest.Builder generation) {
        set(request.temperature(), generation::optTemperature);
        set(request.topP(), generation::optTopP);
        set(request.topK(), generation::optTopK);
        set(request.frequencyPenalty(), generation::optFrequencyPenalty);
        set(request.presencePenalty(), generation::optPresencePenalty);
        set(request.maxOutputTokens(), generation::optMaxTokens);
        generation.optStopStrings(request.stopSequences());
        ResponseFormat format = request.responseFormat();
        if (format != null && format.type() == ResponseFormatType.JSON) {
            JsonSchema schema = format.jsonSchema();
            generation.optGrammar(
                    schema == null
                            ? Grammar.jsonObject()
                            : Grammar.jsonSchema(schema(schema.rootElement())));
        }
    }

    private static <T> void set(T value, Consumer<T> option) {
        if (value != null) {
            option.accept(value);
        }
    }

    private static JsonObject schema(JsonSchemaElement element) {
        return GSON.toJsonTree(JsonSchemaElementUtils.toMap(element)).getAsJsonObject();
    }

    private static Message message(ChatMessage message) {
        if (message instanceof SystemMessage system) {
            return Message.system(system.text());
        }
        if (message instanceof UserMessage user) {
            return Message.user(text(user.contents()));
        }
        if (message instanceof AiMessage answer) {
            List<ToolCall> calls =
                    answer.toolExecutionRequests().stream()
                            .map(call -> new ToolCall(call.id(), call.name(), call.arguments()))
                            .toList();
            return Message.assistant(answer.text(), answer.thinking(), calls);
        }
        if (message instanceof ToolExecutionResultMessage result) {
            return Message.tool(result.id(), text(result.contents()));
        }
        throw new UnsupportedFeatureException(
                "messages of type " + message.type() + " are not supported");
    }

    private static String text(List<Content> contents) {
        StringBuilder text = new StringBuilder();
        for (Content content : contents) {
            if (!(content instanceof TextContent part)) {
                String type = content.type().name().toLowerCase(Locale.ROOT);
                throw new UnsupportedFeatureException(
                        "content of type " + type + " is not supported; the model reads text only");
            }
            text.append(part.text());
        }
        return text.toString();
    }

    private static ChatTools.Tool tool(ToolSpecification tool) {
        return new ChatTools.Tool(
                tool.name(),
                tool.description(),
                tool.parameters() == null ? null : schema(tool.parameters()),
                Boolean.TRUE.equals(tool.strict()));
    }

    /** Passes an answer to a handler while it is generated. */
    private static final class Response implements StreamingHandle {

        private final ChatGeneration generation;
        private final String modelName;
        private final StreamingChatResponseHandler handler;
        private final ToolCallBuilder calls = new ToolCallBuilder(-1);
        private volatile boolean cancelled;

        Response(
                ChatGeneration generation, String modelName, StreamingChatResponseHandler handler) {
            this.generation = generation;
            this.modelName = modelName;
            this.handler = handler;
        }

        @Override
        public void cancel() {
            cancelled = true;
            generation.cancel();
        }

        @Override
        public boolean isCancelled() {
            return cancelled;
        }

        ChatResponse await() throws InterruptedException {
            try {
                List<Part> parts;
                while ((parts = generation.next()) != null) {
                    parts.forEach(this::read);
                }
            } finally {
                generation.cancel(); // Does nothing after a complete answer.
            }
            ChatAnswer answer = generation.answer();
            endCall();
            List<ToolExecutionRequest> requests = calls.allRequests();
            AiMessage message =
                    AiMessage.builder()
                            .toolExecutionRequests(requests)
                            .text(
                                    answer.content().isEmpty() && !requests.isEmpty()
                                            ? null
                                            : answer.content())
                            .thinking(answer.reasoning().isEmpty() ? null : answer.reasoning())
                            .build();
            FinishReason complete =
                    requests.isEmpty() ? FinishReason.STOP : FinishReason.TOOL_EXECUTION;
            boolean isCut = answer.finishReason() == org.djlx.llm.FinishReason.LENGTH;
            return ChatResponse.builder()
                    .id("chatcmpl-" + UUID.randomUUID())
                    .modelName(modelName)
                    .aiMessage(message)
                    .tokenUsage(new TokenUsage(answer.promptTokens(), answer.generatedTokens()))
                    .finishReason(isCut ? FinishReason.LENGTH : complete)
                    .build();
        }

        private void read(Part part) {
            if (cancelled) {
                throw new CancellationException("the answer was cancelled");
            }
            if (!part.reasoning().isEmpty()) {
                InternalStreamingChatResponseHandlerUtils.onPartialThinking(
                        handler, part.reasoning(), this);
            }
            if (!part.content().isEmpty()) {
                InternalStreamingChatResponseHandlerUtils.onPartialResponse(
                        handler, part.content(), this);
            }
            if (part.call() >= 0) {
                call(part);
            }
        }

        private void call(Part part) {
            if (part.call() != calls.index()) {
                endCall();
                calls.updateIndex(part.call());
            }
            calls.updateId(part.id());
            calls.updateName(part.name());
            if (!part.arguments().isEmpty()) {
                calls.appendArguments(part.arguments());
                InternalStreamingChatResponseHandlerUtils.onPartialToolCall(
                        handler,
                        PartialToolCall.builder()
                                .index(part.call())
                                .id(calls.id())
                                .name(calls.name())
                                .partialArguments(part.arguments())
                                .build(),
                        this);
            }
        }

        private void endCall() {
            if (calls.index() >= 0) {
                InternalStreamingChatResponseHandlerUtils.onCompleteToolCall(
                        handler, calls.buildAndReset());
            }
        }
    }
}
