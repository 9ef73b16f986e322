// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.springai;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.djlx.llm.ChatModel;
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
import org.springframework.ai.chat.messages.AssistantMessage;
import org.springframework.ai.chat.messages.Message;
import org.springframework.ai.chat.messages.SystemMessage;
import org.springframework.ai.chat.messages.ToolResponseMessage;
import org.springframework.ai.chat.messages.ToolResponseMessage.ToolResponse;
import org.springframework.ai.chat.messages.UserMessage;
import org.springframework.ai.chat.model.ChatResponse;
import org.springframework.ai.chat.prompt.ChatOptions;
import org.springframework.ai.chat.prompt.Prompt;
import org.springframework.ai.model.tool.StructuredOutputChatOptions;
import org.springframework.ai.model.tool.ToolCallingChatOptions;
import org.springframework.ai.tool.ToolCallback;
import org.springframework.ai.tool.definition.ToolDefinition;

/** A model as Spring AI's, with a tiny Llama of random weights. */
@Timeout(120)
class SpringChatModelTest {

    private static final Duration LONG = Duration.ofMinutes(1);
    private static final ChatOptions GREEDY =
            ToolCallingChatOptions.builder().temperature(0.0).maxTokens(20).build();

    @TempDir private static Path directory;
    private static TextEngine engine;
    private static SpringChatModel model;

    @BeforeAll
    static void load() throws Exception {
        ByteTokens.writeModel(directory, 3);
        engine = TextEngine.builder().setDirectory(directory).build();
        model = model(ChatTemplate.PLAIN, null);
    }

    private static SpringChatModel model(ChatTemplate template, ReasoningFormat reasoning) {
        return new SpringChatModel(chat(template, reasoning), GREEDY);
    }

    private static ChatModel chat(ChatTemplate template, ReasoningFormat reasoning) {
        return new ChatModel("tiny", engine, template, ToolFormat.HERMES, reasoning);
    }

    @AfterAll
    static void close() {
        model.close();
    }

    private static String generated(String prompt) throws Exception {
        GenerationRequest request =
                GenerationRequest.builder().setPrompt(prompt).optMaxTokens(20).build();
        return engine.submit(request).await(LONG).stream()
                .map(GeneratedPiece::text)
                .collect(Collectors.joining());
    }

    private static ToolCallback tool() {
        return new ToolCallback() {
            @Override
            public ToolDefinition getToolDefinition() {
                return ToolDefinition.builder()
                        .name("turn")
                        .description("Turns a lamp")
                        .inputSchema(
                                "{\"type\": \"object\", \"properties\": {},"
                                        + " \"additionalProperties\": false}")
                        .build();
            }

            @Override
            public String call(String arguments) {
                throw new UnsupportedOperationException("the model executes no tools");
            }
        };
    }

    /** All kinds of messages, with defaults and with options of the prompt. */
    @Test
    void answersAsTheGeneratorDoes() throws Exception {
        AssistantMessage.ToolCall call = new AssistantMessage.ToolCall("1", "function", "f", "{}");
        List<Message> messages =
                List.of(
                        new SystemMessage("Be brief."),
                        new UserMessage("How?"),
                        AssistantMessage.builder().content("So.").toolCalls(List.of(call)).build(),
                        ToolResponseMessage.builder()
                                .responses(
                                        List.of(
                                                new ToolResponse("1", "f", "done"),
                                                new ToolResponse("2", "f", "too")))
                                .build());
        String prompt =
                "system: Be brief.\nuser: How?\nassistant: So.\ntool: done\ntool: too\nassistant:";
        ChatResponse response = model.call(new Prompt(messages));
        assertEquals(generated(prompt), response.getResult().getOutput().getText());
        assertEquals("LENGTH", response.getResult().getMetadata().getFinishReason());
        assertEquals(20, response.getMetadata().getUsage().getCompletionTokens());
        assertEquals("tiny", response.getMetadata().getModel());
        assertEquals(generated("user: How?\nassistant:"), model.call("How?"));
        ChatOptions shorter = ChatOptions.builder().maxTokens(3).model("tiny").build();
        ChatResponse less = model.call(new Prompt("How?", shorter));
        assertEquals(3, less.getMetadata().getUsage().getCompletionTokens());

        List<ChatResponse> streamed = model.stream(new Prompt(messages)).collectList().block(LONG);
        assertTrue(streamed.size() > 2);
        assertEquals(
                response.getResult().getOutput().getText(),
                streamed.stream()
                        .map(each -> each.getResult().getOutput().getText())
                        .collect(Collectors.joining()));
        ChatResponse last = streamed.get(streamed.size() - 1);
        assertEquals("LENGTH", last.getResult().getMetadata().getFinishReason());
        assertEquals(20, last.getMetadata().getUsage().getCompletionTokens());
    }

    /** The tools reach the template, and a call of one comes back as a call. */
    @Test
    void callsOfToolsAreReturned() throws Exception {
        ChatTemplate template =
                new ChatTemplate(
                        "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}"
                                + "{% for m in messages %}{{ m.content }}{% endfor %}",
                        Map.of());
        SpringChatModel own = model(template, null);
        ChatOptions options =
                ToolCallingChatOptions.builder().toolCallbacks(List.of(tool())).build();
        ChatResponse with = own.call(new Prompt("How?", options));
        ChatResponse without = own.call(new Prompt("How?"));
        assertEquals(
                "turn".length(),
                with.getMetadata().getUsage().getPromptTokens()
                        - without.getMetadata().getUsage().getPromptTokens());
        // The random model may call it, or answer by the schema.
        SpringChatModel caller = new SpringChatModel(chat(template, null), options);
        ChatOptions schema =
                StructuredOutputChatOptions.builder()
                        .outputSchema("{\"const\": 1}")
                        .temperature(1.0)
                        .build();
        ChatResponse called = caller.call(new Prompt("How?", schema));
        while (!called.hasToolCalls()) {
            called = caller.call(new Prompt("How?", schema));
        }
        AssistantMessage.ToolCall call = called.getResult().getOutput().getToolCalls().get(0);
        assertEquals("turn", call.name());
        assertTrue(call.arguments().matches("\\{\\s*}"), call.arguments());
        ChatResponse last = caller.stream(new Prompt("How?", schema)).blockLast(LONG);
        while (!last.hasToolCalls()) {
            last = caller.stream(new Prompt("How?", schema)).blockLast(LONG);
        }
        assertEquals("turn", last.getResult().getOutput().getToolCalls().get(0).name());
    }

    @Test
    void answersWithJsonOfASchema() {
        ChatOptions options =
                StructuredOutputChatOptions.builder()
                        .outputSchema("{\"enum\": [\"GOOD\", \"BAD\"]}")
                        .temperature(1.0)
                        .build();
        String text = model.call(new Prompt("How?", options)).getResult().getOutput().getText();
        assertTrue(text.matches("\\s*\"(GOOD|BAD)\"\\s*"), text);
    }

    @Test
    void reasoningIsMetadataAndSentBack() throws Exception {
        ChatTemplate template =
                new ChatTemplate(
                        "{% for m in messages %}{{ m.reasoning_content or m.content }}{% endfor %}",
                        Map.of());
        SpringChatModel thinker = model(template, ReasoningFormat.DEEPSEEK_R1);
        AssistantMessage answer = thinker.call(new Prompt("How?")).getResult().getOutput();
        assertEquals("", answer.getText());
        Object reasoning = answer.getMetadata().get(SpringChatModel.REASONING);
        String streamed =
                thinker.stream(new Prompt("How?")).collectList().block(LONG).stream()
                        .map(each -> each.getResult().getOutput().getMetadata())
                        .map(each -> each.getOrDefault(SpringChatModel.REASONING, "").toString())
                        .collect(Collectors.joining());
        assertEquals(reasoning, streamed);
        int first = thinker.call(new Prompt("How?")).getMetadata().getUsage().getPromptTokens();
        int next =
                thinker.call(new Prompt(List.of(new UserMessage("How?"), answer)))
                        .getMetadata()
                        .getUsage()
                        .getPromptTokens();
        assertTrue(next > first, next + " and " + first);
    }

    @Test
    void aStreamIsCancelled() throws Exception {
        long before = engine.statistics().cancelled();
        ChatOptions longer = ChatOptions.builder().maxTokens(200).build();
        assertEquals(
                2,
                model.stream(new Prompt("How?", longer)).take(2).collectList().block(LONG).size());
        while (engine.statistics().cancelled() == before) {
            Thread.sleep(1);
        }
    }

    @Test
    void wrongPromptsAreRefused() {
        ChatOptions other = ChatOptions.builder().model("gpt").build();
        Exception e =
                assertThrows(
                        IllegalArgumentException.class,
                        () -> model.call(new Prompt("How?", other)));
        assertEquals("unknown model 'gpt'; this is 'tiny'", e.getMessage());
        ChatOptions wrong = ChatOptions.builder().topP(7.0).build();
        assertThrows(
                IllegalArgumentException.class,
                () -> model.stream(new Prompt("How?", wrong)).blockLast(LONG));
        assertThrows(IllegalArgumentException.class, () -> new SpringChatModel(null));
    }
}
