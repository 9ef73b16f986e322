// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.openai.client.OpenAIClient;
import com.openai.client.okhttp.OpenAIOkHttpClient;
import com.openai.core.JsonValue;
import com.openai.core.http.StreamResponse;
import com.openai.errors.BadRequestException;
import com.openai.errors.UnauthorizedException;
import com.openai.helpers.ChatCompletionAccumulator;
import com.openai.models.FunctionDefinition;
import com.openai.models.FunctionParameters;
import com.openai.models.chat.completions.ChatCompletion;
import com.openai.models.chat.completions.ChatCompletionChunk;
import com.openai.models.chat.completions.ChatCompletionCreateParams;
import com.openai.models.chat.completions.ChatCompletionMessage;
import com.openai.models.chat.completions.ChatCompletionToolChoiceOption;
import com.openai.models.responses.Response;
import com.openai.models.responses.ResponseCreateParams;
import dev.langchain4j.agent.tool.ToolSpecification;
import dev.langchain4j.data.message.UserMessage;
import dev.langchain4j.exception.InvalidRequestException;
import dev.langchain4j.model.LambdaStreamingResponseHandler;
import dev.langchain4j.model.chat.request.ChatRequest;
import dev.langchain4j.model.chat.request.ResponseFormat;
import dev.langchain4j.model.chat.request.ResponseFormatType;
import dev.langchain4j.model.chat.request.ToolChoice;
import dev.langchain4j.model.chat.request.json.JsonObjectSchema;
import dev.langchain4j.model.chat.request.json.JsonSchema;
import dev.langchain4j.model.chat.response.ChatResponse;
import dev.langchain4j.model.openai.OpenAiChatModel;
import dev.langchain4j.model.openai.OpenAiStreamingChatModel;
import java.nio.file.Path;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.djlx.llm.TextGenerator;
import org.djlx.llm.engine.TextEngine;
import org.djlx.llm.text.ChatTemplate;
import org.djlx.llm.text.ToolFormat;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** OpenAI's and LangChain4j's clients from Maven, with a server of two ranks. */
@Timeout(300)
@Tag("clients")
class JavaClientsTest extends CommandTest {

    private static final String TOKEN = "t0ken";
    private static final Map<String, Object> MOOD =
            Map.of(
                    "type",
                    "object",
                    "properties",
                    Map.of("mood", Map.of("enum", List.of("GOOD", "BAD"))),
                    "required",
                    List.of("mood"),
                    "additionalProperties",
                    false);
    private static final String MOODS = "\\{\\s*\"mood\"\\s*:\\s*\"(GOOD|BAD)\"\\s*}";

    @TempDir private Path folder;
    private TextGenerator generator;
    private GenerationServer server;

    @BeforeEach
    void serve() throws Exception {
        Path model = folder.resolve("tiny");
        output(0, "serve-model", model.toString(), "--max-length", "4096");
        Duration patience = Duration.ofMinutes(1);
        generator = TextEngine.builder().setDirectory(model).optRanks(2).build();
        ToolFormat tools = ToolFormat.named("hermes");
        server =
                new GenerationServer(
                        new TextApi("tiny", generator, ChatTemplate.of(model), tools, null),
                        generator,
                        new ServerOptions(
                                "127.0.0.1",
                                0,
                                TOKEN,
                                List.of(),
                                100_000,
                                100_000,
                                20,
                                patience,
                                patience,
                                Duration.ZERO));
    }

    @AfterEach
    void close() {
        server.close();
        generator.close();
    }

    private String url() {
        return "http://127.0.0.1:" + server.port() + "/v1";
    }

    private static ChatCompletionCreateParams.Builder chat(int tokens) {
        return ChatCompletionCreateParams.builder()
                .model("tiny")
                .addSystemMessage("Be brief.")
                .addUserMessage("Say something.")
                .maxCompletionTokens(tokens)
                .temperature(0);
    }

    @Test
    void openAi() {
        OpenAIClient client =
                OpenAIOkHttpClient.builder().baseUrl(url()).apiKey(TOKEN).maxRetries(0).build();
        ChatCompletion whole = client.chat().completions().create(chat(12).build());
        ChatCompletionMessage message = whole.choices().get(0).message();
        assertEquals(12, whole.usage().orElseThrow().completionTokens());
        assertEquals(
                ChatCompletion.Choice.FinishReason.LENGTH, whole.choices().get(0).finishReason());

        // A stream has the same text, and the accumulator puts it together.
        ChatCompletionAccumulator accumulator = ChatCompletionAccumulator.create();
        try (StreamResponse<ChatCompletionChunk> stream =
                client.chat().completions().createStreaming(chat(12).build())) {
            stream.stream().forEach(accumulator::accumulate);
        }
        assertEquals(
                message.content(),
                accumulator.chatCompletion().choices().get(0).message().content());

        // A second turn.
        ChatCompletionCreateParams next =
                chat(5).addMessage(message).addUserMessage("Go on.").n(2).build();
        assertEquals(2, client.chat().completions().create(next).choices().size());

        // Tools, and their results.
        ChatCompletionCreateParams.Builder call =
                chat(900)
                        .temperature(1)
                        .parallelToolCalls(false)
                        .toolChoice(ChatCompletionToolChoiceOption.Auto.REQUIRED)
                        .addFunctionTool(
                                FunctionDefinition.builder()
                                        .name("feel")
                                        .parameters(
                                                FunctionParameters.builder()
                                                        .additionalProperties(json(MOOD))
                                                        .build())
                                        .build());
        message = client.chat().completions().create(call.build()).choices().get(0).message();
        var function = message.toolCalls().orElseThrow().get(0).asFunction();
        assertEquals("feel", function.function().name());
        assertTrue(function.function().arguments().matches(MOODS), function::toString);

        // Structured output.
        ChatCompletionCreateParams.Builder structured =
                chat(900)
                        .temperature(1)
                        .putAdditionalBodyProperty(
                                "response_format",
                                JsonValue.from(
                                        Map.of(
                                                "type",
                                                "json_schema",
                                                "json_schema",
                                                Map.of("name", "mood", "schema", MOOD))));
        ChatCompletion answer = client.chat().completions().create(structured.build());
        String text = answer.choices().get(0).message().content().orElseThrow();
        assertTrue(text.matches(MOODS), text);

        Response response =
                client.responses()
                        .create(
                                ResponseCreateParams.builder()
                                        .model("tiny")
                                        .input("Say something.")
                                        .maxOutputTokens(16)
                                        .temperature(0)
                                        .build());
        assertEquals(16, response.usage().orElseThrow().outputTokens());

        BadRequestException refused =
                assertThrows(
                        BadRequestException.class,
                        () -> client.chat().completions().create(chat(100_000).build()));
        assertEquals("context_length_exceeded", refused.code().orElseThrow());
        OpenAIClient stranger =
                OpenAIOkHttpClient.builder().baseUrl(url()).apiKey("x").maxRetries(0).build();
        assertThrows(
                UnauthorizedException.class,
                () -> stranger.chat().completions().create(chat(1).build()));
    }

    private static Map<String, JsonValue> json(Map<String, Object> schema) {
        Map<String, JsonValue> json = new HashMap<>();
        schema.forEach((name, value) -> json.put(name, JsonValue.from(value)));
        return json;
    }

    @Test
    void langChain4j() throws Exception {
        OpenAiChatModel model =
                OpenAiChatModel.builder()
                        .baseUrl(url())
                        .apiKey(TOKEN)
                        .modelName("tiny")
                        .temperature(0.0)
                        .maxTokens(12)
                        .parallelToolCalls(false)
                        .maxRetries(0)
                        .strictTools(true)
                        .strictJsonSchema(true)
                        .build();
        String whole = model.chat("Say something.");
        OpenAiStreamingChatModel streaming =
                OpenAiStreamingChatModel.builder()
                        .baseUrl(url())
                        .apiKey(TOKEN)
                        .modelName("tiny")
                        .temperature(0.0)
                        .maxTokens(12)
                        .build();
        StringBuilder streamed = new StringBuilder();
        LambdaStreamingResponseHandler.onPartialResponseBlocking(
                streaming, "Say something.", streamed::append);
        assertEquals(whole, streamed.toString());

        JsonObjectSchema mood =
                JsonObjectSchema.builder()
                        .addEnumProperty("mood", List.of("GOOD", "BAD"))
                        .required("mood")
                        .build();
        ChatRequest.Builder request =
                ChatRequest.builder()
                        .messages(UserMessage.from("How?"))
                        .temperature(1.0)
                        .maxOutputTokens(900);
        ToolSpecification tool = ToolSpecification.builder().name("feel").parameters(mood).build();
        ChatResponse called =
                model.chat(
                        request.toolSpecifications(tool).toolChoice(ToolChoice.REQUIRED).build());
        String arguments = called.aiMessage().toolExecutionRequests().get(0).arguments();
        assertTrue(arguments.matches(MOODS), arguments);
        ResponseFormat format =
                ResponseFormat.builder()
                        .type(ResponseFormatType.JSON)
                        .jsonSchema(JsonSchema.builder().name("mood").rootElement(mood).build())
                        .build();
        ChatRequest structured =
                ChatRequest.builder()
                        .messages(UserMessage.from("How?"))
                        .temperature(1.0)
                        .maxOutputTokens(900)
                        .responseFormat(format)
                        .build();
        String text = model.chat(structured).aiMessage().text();
        assertTrue(text.matches(MOODS), text);
        assertThrows(
                InvalidRequestException.class,
                () -> model.chat(request.maxOutputTokens(100_000).build()));
    }
}
