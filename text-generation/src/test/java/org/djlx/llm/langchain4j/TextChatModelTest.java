// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.langchain4j;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.langchain4j.agent.tool.ToolExecutionRequest;
import dev.langchain4j.agent.tool.ToolSpecification;
import dev.langchain4j.data.message.AiMessage;
import dev.langchain4j.data.message.ChatMessage;
import dev.langchain4j.data.message.ImageContent;
import dev.langchain4j.data.message.SystemMessage;
import dev.langchain4j.data.message.ToolExecutionResultMessage;
import dev.langchain4j.data.message.UserMessage;
import dev.langchain4j.exception.InternalServerException;
import dev.langchain4j.exception.InvalidRequestException;
import dev.langchain4j.exception.ModelNotFoundException;
import dev.langchain4j.exception.RateLimitException;
import dev.langchain4j.exception.UnsupportedFeatureException;
import dev.langchain4j.model.chat.ChatModel;
import dev.langchain4j.model.chat.request.ChatRequest;
import dev.langchain4j.model.chat.request.ChatRequestParameters;
import dev.langchain4j.model.chat.request.ResponseFormat;
import dev.langchain4j.model.chat.request.ResponseFormatType;
import dev.langchain4j.model.chat.request.ToolChoice;
import dev.langchain4j.model.chat.request.json.JsonObjectSchema;
import dev.langchain4j.model.chat.request.json.JsonSchema;
import dev.langchain4j.model.chat.response.ChatResponse;
import dev.langchain4j.model.chat.response.CompleteToolCall;
import dev.langchain4j.model.chat.response.PartialResponse;
import dev.langchain4j.model.chat.response.PartialResponseContext;
import dev.langchain4j.model.chat.response.PartialThinking;
import dev.langchain4j.model.chat.response.PartialToolCall;
import dev.langchain4j.model.chat.response.StreamingChatResponseHandler;
import dev.langchain4j.model.output.FinishReason;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.djlx.llm.GeneratedPiece;
import org.djlx.llm.GenerationRequest;
import org.djlx.llm.engine.ByteTokens;
import org.djlx.llm.engine.TextEngine;
import org.djlx.llm.text.ChatTemplate;
import org.djlx.llm.text.ReasoningFormat;
import org.djlx.llm.text.ToolFormat;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** A generator as a chat model, with a tiny Llama of random weights. */
@Timeout(120)
class TextChatModelTest {

    private static final ChatMessage HOW = UserMessage.from("How?");
    private static final ToolSpecification SWITCH =
            ToolSpecification.builder()
                    .name("switch")
                    .description("Switches a lamp.")
                    .parameters(
                            JsonObjectSchema.builder()
                                    .addBooleanProperty("on")
                                    .required("on")
                                    .build())
                    .build();

    @TempDir private static Path directory;
    private static TextEngine generator;
    private static org.djlx.llm.ChatModel chat;
    private static TextChatModel model;

    @BeforeAll
    static void load() throws Exception {
        ByteTokens.writeModel(directory, 3);
        generator =
                TextEngine.builder().setDirectory(directory).optRanks(2).optMaxQueued(1).build();
        chat =
                new org.djlx.llm.ChatModel(
                        "tiny", generator, ChatTemplate.PLAIN, ToolFormat.named("hermes"), null);
        model = new TextChatModel(chat);
    }

    @AfterAll
    static void close() {
        model.close();
    }

    private static ChatRequest.Builder request(ChatMessage... messages) {
        return ChatRequest.builder().messages(messages).temperature(0.0).maxOutputTokens(20);
    }

    private static String generated(String prompt, int tokens) throws Exception {
        GenerationRequest request =
                GenerationRequest.builder().setPrompt(prompt).optMaxTokens(tokens).build();
        return generator.submit(request).await(Duration.ofMinutes(1)).stream()
                .map(GeneratedPiece::text)
                .collect(Collectors.joining());
    }

    /** Collects what is streamed. */
    private static class Collector implements StreamingChatResponseHandler {

        final StringBuilder text = new StringBuilder();
        final List<PartialToolCall> parts = new ArrayList<>();
        final List<CompleteToolCall> calls = new ArrayList<>();
        final CompletableFuture<ChatResponse> response = new CompletableFuture<>();

        @Override
        public void onPartialResponse(String partial) {
            text.append(partial);
        }

        @Override
        public void onPartialToolCall(PartialToolCall part) {
            parts.add(part);
        }

        @Override
        public void onCompleteToolCall(CompleteToolCall call) {
            calls.add(call);
        }

        @Override
        public void onCompleteResponse(ChatResponse complete) {
            response.complete(complete);
        }

        @Override
        public void onError(Throwable error) {
            response.completeExceptionally(error);
        }

        ChatResponse await() throws Exception {
            return response.get(1, TimeUnit.MINUTES);
        }
    }

    @Test
    void answersAsTheGeneratorDoes() throws Exception {
        ChatMessage[] chat = {
            SystemMessage.from("Be brief."), HOW, AiMessage.from("So."), UserMessage.from("Why?")
        };
        String prompt = "system: Be brief.\nuser: How?\nassistant: So.\nuser: Why?\nassistant:";
        ChatResponse response = model.chat(request(chat).build());
        assertEquals(generated(prompt, 20), response.aiMessage().text());
        assertEquals(FinishReason.LENGTH, response.finishReason());
        assertEquals(20, response.tokenUsage().outputTokenCount());
        assertEquals("tiny", response.modelName());
        assertTrue(response.id().startsWith("chatcmpl-"), response.id());

        Collector streamed = new Collector();
        model.streaming().chat(request(chat).build(), streamed);
        assertEquals(response.aiMessage(), streamed.await().aiMessage());
        assertEquals(response.aiMessage().text(), streamed.text.toString());
        assertEquals(response.tokenUsage(), streamed.await().tokenUsage());
    }

    @Test
    void takesDefaultsAndParameters() throws Exception {
        ChatRequestParameters defaults =
                ChatRequestParameters.builder()
                        .temperature(0.0)
                        .maxOutputTokens(5)
                        .stopSequences("zzz")
                        .topP(0.9)
                        .topK(3)
                        .frequencyPenalty(0.0)
                        .presencePenalty(0.0)
                        .modelName("tiny")
                        .build();
        ChatModel other = new TextChatModel(chat, defaults, List.of());
        assertEquals(generated("user: How?\nassistant:", 5), other.chat("How?"));
    }

    /** Forced calls follow the schema of the tool, and results go back to the model. */
    @Test
    void callsTools() throws Exception {
        ChatRequest request =
                request(HOW)
                        .maxOutputTokens(200)
                        .temperature(1.0)
                        .toolSpecifications(SWITCH)
                        .toolChoice(ToolChoice.REQUIRED)
                        .build();
        ChatResponse whole = model.chat(request);
        while (whole.finishReason() == FinishReason.LENGTH) { // The model may call again and again.
            whole = model.chat(request);
        }
        Collector streamed = new Collector();
        model.streaming().chat(request, streamed);
        while (streamed.await().finishReason() == FinishReason.LENGTH) {
            streamed = new Collector();
            model.streaming().chat(request, streamed);
        }
        for (ChatResponse response : List.of(whole, streamed.await())) {
            AiMessage answer = response.aiMessage();
            assertNull(answer.text());
            assertEquals(FinishReason.TOOL_EXECUTION, response.finishReason());
            assertFalse(answer.toolExecutionRequests().isEmpty());
            for (ToolExecutionRequest call : answer.toolExecutionRequests()) {
                assertEquals("switch", call.name());
                assertTrue(call.arguments().matches("\\{\\s*\"on\"\\s*:\\s*(true|false)\\s*}"));
            }
        }
        List<ToolExecutionRequest> calls = streamed.await().aiMessage().toolExecutionRequests();
        assertEquals(
                calls,
                streamed.calls.stream().map(CompleteToolCall::toolExecutionRequest).toList());
        assertEquals(
                calls.stream().map(ToolExecutionRequest::arguments).collect(Collectors.joining()),
                streamed.parts.stream()
                        .map(PartialToolCall::partialArguments)
                        .collect(Collectors.joining()));
        ToolExecutionRequest call = calls.get(0);
        ChatRequest next =
                request(HOW, AiMessage.from(call), ToolExecutionResultMessage.from(call, "done"))
                        .maxOutputTokens(3)
                        .build();
        assertEquals(3, model.chat(next).tokenUsage().outputTokenCount());
    }

    @Test
    void answersWithJsonOfASchema() {
        JsonSchema schema =
                JsonSchema.builder()
                        .name("review")
                        .rootElement(
                                JsonObjectSchema.builder()
                                        .addEnumProperty("mood", List.of("GOOD", "BAD"))
                                        .required("mood")
                                        .build())
                        .build();
        ChatRequest request =
                request(HOW)
                        .maxOutputTokens(200)
                        .temperature(1.0)
                        .responseFormat(
                                ResponseFormat.builder()
                                        .type(ResponseFormatType.JSON)
                                        .jsonSchema(schema)
                                        .build())
                        .build();
        for (int i = 0; i < 5; i++) {
            String json = model.chat(request).aiMessage().text();
            assertTrue(json.matches("\\{\\s*\"mood\"\\s*:\\s*\"(GOOD|BAD)\"\\s*}"), json);
        }
    }

    @Test
    void aStreamIsCancelled() throws Exception {
        long before = generator.statistics().cancelled();
        CompletableFuture<Void> cancelled = new CompletableFuture<>();
        Collector streamed =
                new Collector() {
                    @Override
                    public void onPartialResponse(
                            PartialResponse partial, PartialResponseContext context) {
                        assertFalse(cancelled.isDone(), "a piece after the end");
                        context.streamingHandle().cancel();
                        assertTrue(context.streamingHandle().isCancelled());
                        cancelled.complete(null);
                    }
                };
        model.streaming().chat(request(HOW).maxOutputTokens(100).build(), streamed);
        cancelled.get(1, TimeUnit.MINUTES);
        while (generator.statistics().cancelled() == before) {
            Thread.sleep(1);
        }
        assertFalse(streamed.response.isDone());
    }

    @Test
    void failuresAreLangChain4jsOwn() throws Exception {
        assertThrows(
                InvalidRequestException.class,
                () -> model.chat(request(HOW).temperature(-1.0).build()));
        InvalidRequestException length =
                assertThrows(
                        InvalidRequestException.class,
                        () -> model.chat(request(HOW).maxOutputTokens(100_000).build()));
        assertTrue(length.getMessage().contains("100000"), length.getMessage());
        assertThrows(
                ModelNotFoundException.class,
                () -> model.chat(request(HOW).modelName("gpt").build()));
        ChatRequest image = request(UserMessage.from(ImageContent.from("http://a/b.png"))).build();
        Exception e = assertThrows(UnsupportedFeatureException.class, () -> model.chat(image));
        assertEquals(
                "content of type image is not supported; the model reads text only",
                e.getMessage());
        assertThrows(
                UnsupportedFeatureException.class,
                () -> model.streaming().chat(image, new Collector()));
        Collector streamed = new Collector();
        model.streaming().chat(request(HOW).topP(7.0).build(), streamed);
        Exception failed = assertThrows(Exception.class, streamed::await);
        assertEquals(InvalidRequestException.class, failed.getCause().getClass());
    }

    @Test
    void aFullQueueAndAClosedGeneratorAreToldApart(@TempDir Path own) throws Exception {
        ByteTokens.writeModel(own, 3);
        TextEngine small =
                TextEngine.builder().setDirectory(own).optMaxRunning(1).optMaxQueued(1).build();
        TextChatModel busy =
                new TextChatModel(
                        new org.djlx.llm.ChatModel("tiny", small, ChatTemplate.PLAIN, null, null));
        List<Collector> all = new ArrayList<>();
        for (int i = 0; i < 64; i++) { // Some come while another runs and one waits.
            all.add(new Collector());
            busy.streaming().chat(request(HOW).maxOutputTokens(100).build(), all.get(i));
        }
        int refused = 0;
        for (Collector each : all) {
            try {
                each.await();
            } catch (Exception e) {
                assertEquals(RateLimitException.class, e.getCause().getClass());
                refused++;
            }
        }
        assertTrue(refused >= 1 && refused <= 63, refused + " refused");
        small.close();
        assertThrows(InternalServerException.class, () -> busy.chat("How?"));
    }

    @Test
    void nullsAreRefused() {
        assertThrows(IllegalArgumentException.class, () -> new TextChatModel(null));
        assertThrows(
                IllegalArgumentException.class, () -> new TextChatModel(chat, null, List.of()));
    }

    @Test
    void thinkingIsStreamedAndSentBack() throws Exception {
        ChatTemplate template =
                new ChatTemplate(
                        "{% for m in messages %}{{ m.reasoning_content or m.content }}{% endfor %}",
                        Map.of());
        TextChatModel thinker =
                new TextChatModel(
                        new org.djlx.llm.ChatModel(
                                "tiny", generator, template, null, ReasoningFormat.DEEPSEEK_R1));
        ChatMessage before = AiMessage.builder().text("x").thinking("Why?").build();
        StringBuilder thinking = new StringBuilder();
        Collector collector =
                new Collector() {
                    @Override
                    public void onPartialThinking(PartialThinking partial) {
                        thinking.append(partial.text());
                    }
                };
        thinker.streaming().chat(request(HOW, before).build(), collector);
        AiMessage answer = collector.response.get(1, TimeUnit.MINUTES).aiMessage();
        int[] prompt = generator.tokenizer().orElseThrow().encode("How?Why?", false);
        GenerationRequest same =
                GenerationRequest.builder().setPromptTokens(prompt).optMaxTokens(20).build();
        String text =
                generator.submit(same).await(Duration.ofMinutes(1)).stream()
                        .map(GeneratedPiece::text)
                        .collect(Collectors.joining());
        assertEquals(text.strip(), answer.thinking());
        assertEquals(answer.thinking(), thinking.toString());
        assertEquals("", answer.text());
    }
}
