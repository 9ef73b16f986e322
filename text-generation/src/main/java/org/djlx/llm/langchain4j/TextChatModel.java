// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.langchain4j;

import com.google.gson.FieldNamingPolicy;
import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
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
import dev.langchain4j.model.chat.request.json.JsonSchema;
import dev.langchain4j.model.chat.response.ChatResponse;
import dev.langchain4j.model.chat.response.PartialToolCall;
import dev.langchain4j.model.chat.response.StreamingChatResponseHandler;
import dev.langchain4j.model.chat.response.StreamingHandle;
import dev.langchain4j.model.output.FinishReason;
import dev.langchain4j.model.output.TokenUsage;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CancellationException;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.Semaphore;
import org.djlx.llm.TextGenerator;
import org.djlx.llm.server.ApiException;
import org.djlx.llm.server.TextAnswer;
import org.djlx.llm.server.TextApi;

/**
 * A {@link TextGenerator} as LangChain4j's {@link ChatModel}, and with {@link #streaming} as its
 * {@link StreamingChatModel}. Chats have texts, reasoning, tools and tool results; {@code
 * AiServices} gets structured output by a JSON schema.
 *
 * <pre>{@code
 * TextApi api = new TextApi("tiny", generator, ChatTemplate.of(directory));
 * ChatModel model = new TextChatModel(api, generator);
 * String answer = model.chat("Hello");
 * }</pre>
 *
 * <ul>
 *   <li>Requests that are not valid fail with {@code InvalidRequestException}, a full queue is a
 *       {@code RateLimitException}, a failed generator an {@code InternalServerException}.
 *   <li>Streaming callbacks of a request run on one thread of its own; one that blocks delays only
 *       this request.
 *   <li>Interrupting a thread in {@code chat} cancels its request.
 *   <li>Thread-safe. The caller closes the generator.
 * </ul>
 */
public final class TextChatModel implements ChatModel {

    private static final Gson GSON = // leaves out nulls
            new GsonBuilder()
                    .setFieldNamingPolicy(FieldNamingPolicy.LOWER_CASE_WITH_UNDERSCORES)
                    .create();
    private static final Map<String, FinishReason> REASONS =
            Map.of(
                    "stop", FinishReason.STOP,
                    "length", FinishReason.LENGTH,
                    "tool_calls", FinishReason.TOOL_EXECUTION);

    /** For answers that are not streamed. */
    private static final StreamingChatResponseHandler NOTHING =
            new StreamingChatResponseHandler() {
                @Override
                public void onCompleteResponse(ChatResponse response) {}

                @Override
                public void onError(Throwable error) {}
            };

    private final TextApi api;
    private final TextGenerator generator;
    private final ChatRequestParameters defaults;
    private final List<ChatModelListener> listeners;

    /**
     * Creates a model whose requests have the model's own defaults. The caller closes the
     * generator.
     */
    public TextChatModel(TextApi api, TextGenerator generator) {
        this(api, generator, ChatRequestParameters.builder().build(), List.of());
    }

    /**
     * Creates a model. The caller closes the generator. {@code defaults} are for requests that
     * leave parameters out; the listeners are told of requests, responses and errors.
     */
    public TextChatModel(
            TextApi api,
            TextGenerator generator,
            ChatRequestParameters defaults,
            List<ChatModelListener> listeners) {
        if (api == null || generator == null || defaults == null || listeners == null) {
            throw new IllegalArgumentException(
                    "the api, the generator, the defaults or the listeners are null");
        }
        this.api = api;
        this.generator = generator;
        this.defaults = defaults;
        this.listeners = List.copyOf(listeners);
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
            return new Response(submit(json(request)), NOTHING).await();
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
                String json = json(request);
                Thread thread = new Thread(() -> stream(json, handler), "chat-model-stream");
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

    private void stream(String request, StreamingChatResponseHandler handler) {
        Response response = null;
        try {
            response = new Response(submit(request), handler);
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

    private TextAnswer submit(String json) {
        return api.chat(json.getBytes(StandardCharsets.UTF_8)).submit(generator);
    }

    private static RuntimeException mapped(RuntimeException e) {
        int status = 500;
        if (e instanceof ApiException refusal) {
            status = refusal.status();
        } else if (e instanceof IllegalArgumentException) {
            status = 400;
        } else if (e instanceof RejectedExecutionException) {
            status = 429;
        } else if (e instanceof UnsupportedFeatureException) {
            return e;
        }
        // A cause would hide the status from the mapper.
        RuntimeException mapped =
                ExceptionMapper.DEFAULT.mapException(new HttpException(status, e.getMessage()));
        mapped.addSuppressed(e);
        return mapped;
    }

    private static String json(ChatRequest request) {
        Map<String, Object> json = new HashMap<>(Map.of("stream", true));
        json.put("stream_options", Map.of("include_usage", true));
        json.put("messages", request.messages().stream().map(TextChatModel::message).toList());
        json.put("model", request.modelName());
        json.put("temperature", request.temperature());
        json.put("top_p", request.topP());
        json.put("top_k", request.topK());
        json.put("frequency_penalty", request.frequencyPenalty());
        json.put("presence_penalty", request.presencePenalty());
        json.put("max_completion_tokens", request.maxOutputTokens());
        json.put("stop", request.stopSequences());
        json.put("tools", request.toolSpecifications().stream().map(TextChatModel::tool).toList());
        if (request.toolChoice() != null) {
            json.put("tool_choice", request.toolChoice().name().toLowerCase(Locale.ROOT));
        }
        ResponseFormat format = request.responseFormat();
        if (format != null && format.type() == ResponseFormatType.JSON) {
            JsonSchema schema = format.jsonSchema();
            if (schema == null) {
                json.put("response_format", Map.of("type", "json_object"));
            } else {
                json.put("guided_json", JsonSchemaElementUtils.toMap(schema.rootElement()));
            }
        }
        return GSON.toJson(json);
    }

    private static Map<String, Object> message(ChatMessage message) {
        Map<String, Object> json = new HashMap<>();
        if (message instanceof SystemMessage system) {
            json.put("role", "system");
            json.put("content", system.text());
        } else if (message instanceof UserMessage user) {
            json.put("role", "user");
            json.put("content", text(user.contents()));
        } else if (message instanceof AiMessage answer) {
            json.put("role", "assistant");
            json.put("content", answer.text());
            json.put("reasoning_content", answer.thinking());
            json.put(
                    "tool_calls",
                    answer.toolExecutionRequests().stream().map(TextChatModel::call).toList());
        } else if (message instanceof ToolExecutionResultMessage result) {
            json.put("role", "tool");
            json.put("tool_call_id", result.id());
            json.put("content", text(result.contents()));
        } else {
            throw new UnsupportedFeatureException(
                    "messages of type " + message.type() + " are not supported");
        }
        return json;
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

    private static Map<String, Object> call(ToolExecutionRequest call) {
        Map<String, Object> json = new HashMap<>();
        json.put("id", call.id());
        json.put("type", "function");
        json.put("function", Map.of("name", call.name(), "arguments", call.arguments()));
        return json;
    }

    private static Map<String, Object> tool(ToolSpecification tool) {
        Map<String, Object> function = new HashMap<>();
        function.put("name", tool.name());
        function.put("description", tool.description());
        function.put("strict", tool.strict());
        if (tool.parameters() != null) {
            function.put("parameters", JsonSchemaElementUtils.toMap(tool.parameters()));
        }
        return Map.of("type", "function", "function", function);
    }

    /** A server-sent event of a chat completion. */
    private record Event(String id, String model, List<Choice> choices, Usage usage) {}

    private record Choice(Delta delta, String finishReason) {}

    private record Delta(String content, String reasoningContent, List<Call> toolCalls) {}

    private record Call(int index, String id, Function function) {}

    private record Function(String name, String arguments) {}

    private record Usage(int promptTokens, int completionTokens) {}

    /** Reads an answer as it is generated. */
    private static final class Response implements StreamingHandle {

        private final TextAnswer answer;
        private final StreamingChatResponseHandler handler;
        private final Semaphore progress = new Semaphore(0);
        private final StringBuilder text = new StringBuilder();
        private final StringBuilder thinking = new StringBuilder();
        private final ToolCallBuilder calls = new ToolCallBuilder(-1);
        private final ChatResponse.Builder response = ChatResponse.builder();
        private volatile boolean cancelled;

        Response(TextAnswer answer, StreamingChatResponseHandler handler) {
            this.answer = answer;
            this.handler = handler;
            answer.onProgress(progress::release);
        }

        @Override
        public void cancel() {
            cancelled = true;
            answer.cancel();
        }

        @Override
        public boolean isCancelled() {
            return cancelled;
        }

        ChatResponse await() throws InterruptedException {
            try {
                while (!answer.isComplete()) {
                    progress.acquire();
                    progress.drainPermits();
                    for (Optional<String> next = answer.poll();
                            next.isPresent();
                            next = answer.poll()) {
                        next.get().lines().filter(line -> !line.isEmpty()).forEach(this::read);
                    }
                }
            } finally {
                answer.cancel(); // Does nothing after a complete answer.
            }
            endCall();
            List<ToolExecutionRequest> requests = calls.allRequests();
            AiMessage.Builder message = AiMessage.builder().toolExecutionRequests(requests);
            if (!text.isEmpty() || requests.isEmpty()) {
                message.text(text.toString());
            }
            message.thinking(thinking.isEmpty() ? null : thinking.toString());
            return response.aiMessage(message.build()).build();
        }

        private void read(String line) {
            String data = line.substring("data: ".length());
            if (cancelled) {
                throw new CancellationException("the answer was cancelled");
            }
            if (data.equals("[DONE]")) {
                return;
            }
            Event event = GSON.fromJson(data, Event.class);
            response.id(event.id).modelName(event.model);
            if (event.usage != null) {
                Usage usage = event.usage;
                response.tokenUsage(new TokenUsage(usage.promptTokens, usage.completionTokens));
            }
            for (Choice choice : event.choices) {
                if (choice.finishReason != null) {
                    response.finishReason(REASONS.get(choice.finishReason));
                }
                String thought = choice.delta.reasoningContent;
                if (thought != null) {
                    thinking.append(thought);
                    InternalStreamingChatResponseHandlerUtils.onPartialThinking(
                            handler, thought, this);
                }
                String content = choice.delta.content;
                if (content != null && !content.isEmpty()) {
                    text.append(content);
                    InternalStreamingChatResponseHandlerUtils.onPartialResponse(
                            handler, content, this);
                }
                if (choice.delta.toolCalls != null) {
                    choice.delta.toolCalls.forEach(this::call);
                }
            }
        }

        private void call(Call call) {
            if (call.index != calls.index()) {
                endCall();
                calls.updateIndex(call.index);
            }
            calls.updateId(call.id);
            calls.updateName(call.function.name);
            String arguments = call.function.arguments;
            if (!arguments.isEmpty()) {
                calls.appendArguments(arguments);
                InternalStreamingChatResponseHandlerUtils.onPartialToolCall(
                        handler,
                        PartialToolCall.builder()
                                .index(call.index)
                                .id(calls.id())
                                .name(calls.name())
                                .partialArguments(arguments)
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
