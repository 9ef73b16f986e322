// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.JsonElement;
import com.google.gson.annotations.SerializedName;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CancellationException;
import java.util.function.Consumer;
import java.util.stream.Collectors;
import org.djlx.llm.engine.ByteTokens;
import org.djlx.llm.engine.TextEngine;
import org.djlx.llm.server.TextAnswer;
import org.djlx.llm.server.TextApi;
import org.djlx.llm.text.AnswerStream.Part;
import org.djlx.llm.text.ChatTemplate;
import org.djlx.llm.text.ChatTemplate.Message;
import org.djlx.llm.text.ContextLengthException;
import org.djlx.llm.text.ReasoningFormat;
import org.djlx.llm.text.ToolCall;
import org.djlx.llm.text.ToolFormat;
import org.djlx.nativeops.TestJson;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** Chats in plain Java, with a tiny Llama of random weights. */
@Timeout(120)
class ChatModelTest {

    private static final String TEMPLATE =
            "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<{{ m.role }}>"
                    + "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}"
                    + "{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}"
                    + "{{ m.content }}{% endfor %}<{{ mood }}>";
    private static final Consumer<GenerationRequest.Builder> GREEDY =
            generation -> generation.optTemperature(0).optMaxTokens(20);

    /** What a lamp can do. */
    enum Mode {
        ON,
        OFF,
        DIM
    }

    record Lamp(Mode mode, int percent) {}

    record House(
            List<Lamp> lamps,
            Map<String, Boolean> doors,
            Set<Mode> modes,
            boolean isLit,
            long id,
            double size) {}

    record Tree(String name, List<Tree> branches) {}

    record Dated(java.time.LocalDate date) {}

    record Renamed(@SerializedName("lamp_id") Long lampId) {}

    @TempDir private static Path directory;
    private static ChatModel model;

    @BeforeAll
    static void load() throws Exception {
        ByteTokens.writeModel(directory, 3);
        Path config = directory.resolve("config.json");
        String longer = "\"max_position_embeddings\": 8192";
        Files.writeString(
                config,
                Files.readString(config)
                        .replaceFirst("\"max_position_embeddings\": *\\d+", longer));
        Files.writeString(directory.resolve("chat_template.jinja"), TEMPLATE);
        model = model(ToolFormat.HERMES, null);
    }

    private static ChatModel model(ToolFormat tools, ReasoningFormat reasoning) throws Exception {
        TextGenerator generator =
                model == null
                        ? TextEngine.builder().setDirectory(directory).build()
                        : model.generator();
        return new ChatModel("tiny", generator, ChatTemplate.of(directory), tools, reasoning);
    }

    @AfterAll
    static void close() {
        model.close();
    }

    private static ChatRequest.Builder chat() {
        return ChatRequest.builder().addUser("How?").optGeneration(GREEDY);
    }

    private static String generated(String prompt, int tokens) throws Exception {
        int[] encoded = model.generator().tokenizer().orElseThrow().encode(prompt, false);
        GenerationRequest request =
                GenerationRequest.builder().setPromptTokens(encoded).optMaxTokens(tokens).build();
        return model.generator().submit(request).await(Duration.ofMinutes(1)).stream()
                .map(GeneratedPiece::text)
                .collect(Collectors.joining());
    }

    @Test
    void modelOfADirectoryAnswersWithTheTemplateOfThatDirectory() throws Exception {
        try (ChatModel own = ChatModel.of(directory.toString())) {
            assertEquals(directory.getFileName().toString(), own.name());
            ChatAnswer answer = own.chat(chat().build());
            assertEquals(generated("<user>How?<>", 20), answer.content());
            assertEquals(FinishReason.LENGTH, answer.finishReason());
            assertEquals(20, answer.generatedTokens());
            assertTrue(answer.promptTokens() > 0);
            assertNotNull(own.chat("How?")); // sampled, up to the end of the context
        }
    }

    /** All kinds of messages, compared with the same chat as JSON. */
    @Test
    void messagesAreThoseOfTheServer() throws Exception {
        ToolCall call = new ToolCall("1", "turn", "{\"on\": true, \"to\": [1.50, 2]}");
        List<Part> parts = new ArrayList<>();
        ChatRequest request =
                ChatRequest.builder()
                        .addSystem("Be brief.")
                        .addUser("Light!")
                        .addMessage(Message.assistant(null, "It is dark.", List.of(call)))
                        .addMessage(Message.tool("1", "done"))
                        .addTool("turn", "Turns a lamp", Lamp.class)
                        .optVariables(Map.of("mood", "good"))
                        .optGeneration(GREEDY)
                        .build();
        ChatAnswer answer = model.chat(request, parts::add);
        String json =
                """
                {"messages": [{"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Light!"},
                {"role": "assistant", "reasoning_content": "It is dark.", "tool_calls": [{"id": "1",
                "type": "function", "function": {"name": "turn",
                "arguments": "{\\"on\\": true, \\"to\\": [1.50, 2]}"}}]},
                {"role": "tool", "tool_call_id": "1", "content": "done"}],
                "tools": [{"type": "function", "function": {"name": "turn",
                "description": "Turns a lamp", "parameters": {"type": "object", "properties": {
                "mode": {"enum": ["ON", "OFF", "DIM"]}, "percent": {"type": "integer",
                "minimum": -2147483648, "maximum": 2147483647}}, "required": ["mode", "percent"],
                "additionalProperties": false}}}],
                "chat_template_kwargs": {"mood": "good"}, "temperature": 0, "max_tokens": 20}
                """;
        TextApi api =
                new TextApi(
                        "tiny",
                        model.generator(),
                        ChatTemplate.of(directory),
                        ToolFormat.HERMES,
                        null);
        TextAnswer text = api.chat(json.getBytes(StandardCharsets.UTF_8)).submit(model.generator());
        String whole = "";
        while (!text.isComplete()) {
            whole = text.poll().orElse(whole);
        }
        assertEquals(
                TestJson.at(whole, "choices.0.message.content").getAsString(), answer.content());
        assertEquals(TestJson.at(whole, "usage.prompt_tokens").getAsInt(), answer.promptTokens());
        assertEquals(
                answer.content(), parts.stream().map(Part::content).collect(Collectors.joining()));
    }

    @Test
    void aRecordIsAnswered() throws Exception {
        ChatRequest request =
                ChatRequest.builder()
                        .addUser("Describe the house.")
                        .optGeneration(
                                generation ->
                                        generation.optTemperature(1).optSeed(5).optMaxTokens(5000))
                        .build();
        House house = model.chat(request, House.class);
        assertNotNull(house.lamps());
        for (Lamp lamp : house.lamps()) {
            assertNotNull(lamp.mode());
        }
        ChatRequest cut = chat().optGeneration(generation -> generation.optMaxTokens(3)).build();
        Exception e = assertThrows(IllegalStateException.class, () -> model.chat(cut, House.class));
        assertTrue(e.getMessage().contains("cut after 3 tokens and is no whole House"));
    }

    @Test
    void componentsHaveTheNamesThatGsonReads() throws Exception {
        ChatRequest request =
                chat().optGeneration(
                                generation ->
                                        generation.optTemperature(1).optSeed(5).optMaxTokens(2000))
                        .build();
        assertNotNull(model.chat(request, Renamed.class).lampId());
        JsonElement id = RecordSchema.of(Renamed.class).get("properties");
        assertEquals(Long.MAX_VALUE, TestJson.at(id.toString(), "lamp_id.maximum").getAsLong());
    }

    @Test
    void typesThatHaveNoSchemaAreNamed() {
        Exception e =
                assertThrows(
                        IllegalArgumentException.class,
                        () -> model.chat(chat().build(), Tree.class));
        assertTrue(e.getMessage().startsWith("Tree.branches has the type "), e.getMessage());
        e =
                assertThrows(
                        IllegalArgumentException.class,
                        () -> model.chat(chat().build(), Dated.class));
        assertTrue(
                e.getMessage().startsWith("Dated.date has the type java.time.LocalDate; supported"),
                e.getMessage());
    }

    @Test
    void toolsAreCalledWithRecords() throws Exception {
        ChatRequest.Builder request =
                chat().addTool("turn", "Turns a lamp", Lamp.class)
                        .addTool("no", "Does nothing", Lamp.class)
                        .optForcesCall(true);
        List<Part> parts = new ArrayList<>();
        ChatAnswer answer = whole(model, request, parts);
        assertFalse(answer.calls().isEmpty());
        ToolCall call = answer.calls().get(0);
        assertNotNull(call.arguments(Lamp.class).mode());
        assertEquals(
                call.arguments(),
                parts.stream()
                        .filter(part -> part.call() == 0)
                        .map(Part::arguments)
                        .collect(Collectors.joining()));
        assertNull(answer.message().content());
        ChatRequest next =
                chat().addMessage(answer.message())
                        .addMessage(Message.tool(call.id(), "It shines."))
                        .build();
        assertEquals(20, model.chat(next).generatedTokens());
        Exception e =
                assertThrows(
                        IllegalArgumentException.class,
                        () -> model(null, null).chat(request.build()));
        assertTrue(e.getMessage().contains("no known format of tool calls"), e.getMessage());
    }

    @Test
    void reasoningIsDividedAndSentBack() throws Exception {
        ChatModel thinker = model(null, ReasoningFormat.DEEPSEEK_R1);
        ChatAnswer answer = thinker.chat(chat().build());
        assertEquals(generated("<user>How?<>", 20).strip(), answer.reasoning());
        assertEquals("", answer.content());
        ChatAnswer after = thinker.chat(chat().addMessage(answer.message()).build());
        String prompt = "<user>How?<assistant>(" + answer.reasoning() + ")<>";
        assertEquals(generated(prompt, 20).strip(), after.reasoning());
    }

    /** Returns an answer that a random model has ended before its maximum length. */
    private static ChatAnswer whole(ChatModel of, ChatRequest.Builder request, List<Part> parts)
            throws InterruptedException {
        for (int i = 0; i < 50; i++) {
            int seed = i;
            parts.clear();
            ChatRequest sampled =
                    request.build()
                            .with(
                                    options ->
                                            options.optTemperature(1)
                                                    .optSeed(seed)
                                                    .optMaxTokens(2000));
            ChatAnswer answer = of.chat(sampled, parts::add);
            if (answer.finishReason() != FinishReason.LENGTH) {
                return answer;
            }
        }
        throw new AssertionError("each of 50 answers was cut");
    }

    @Test
    void anAnswerIsCancelled() throws Exception {
        ChatRequest endless =
                chat().optGeneration(generation -> generation.optIgnoreEndOfText(true)).build();
        long before = model.generator().statistics().cancelled();
        assertThrows(
                UnsupportedOperationException.class,
                () ->
                        model.chat(
                                endless,
                                part -> {
                                    throw new UnsupportedOperationException();
                                }));
        Thread.currentThread().interrupt();
        assertThrows(InterruptedException.class, () -> model.chat(endless));
        ChatGeneration generation = model.submit(endless);
        assertThrows(IllegalStateException.class, generation::answer);
        generation.cancel();
        while (generation.next() != null) {
            Thread.onSpinWait();
        }
        assertThrows(CancellationException.class, generation::answer);
        while (model.generator().statistics().cancelled() < before + 3) {
            Thread.sleep(1);
        }
    }

    @Test
    void wrongRequestsAreRefused() {
        Exception e =
                assertThrows(IllegalArgumentException.class, () -> ChatRequest.builder().build());
        assertTrue(e.getMessage().contains("messages must not be empty"), e.getMessage());
        assertThrows(IllegalArgumentException.class, () -> chat().optForcesCall(true).build());
        assertThrows(
                IllegalArgumentException.class,
                () -> chat().addTool("a", "", Lamp.class).addTool("a", "", Lamp.class).build());
        assertThrows(
                ContextLengthException.class,
                () -> model.chat(ChatRequest.of("long ".repeat(100_000))));
        assertThrows(
                IllegalArgumentException.class,
                () -> model.submit(chat().optGeneration(each -> each.optTemperature(-1)).build()));
    }
}
