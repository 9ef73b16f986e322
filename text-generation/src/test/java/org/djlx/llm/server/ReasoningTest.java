// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import org.djlx.llm.TextGenerator;
import org.djlx.llm.sampling.Constraint;
import org.djlx.llm.sampling.Grammar;
import org.djlx.llm.sampling.Vocabulary;
import org.djlx.llm.text.ChatTemplate;
import org.djlx.llm.text.ReasoningFormat;
import org.djlx.nativeops.TestJson;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Reasoning over the API. */
@Timeout(120)
class ReasoningTest {

    /** Qwen 3's template, in short. */
    private static final ChatTemplate TEMPLATE =
            new ChatTemplate(
                    """
                    {% for tool in tools or [] %}<tool_call>{{ tool.function.name }};{% endfor %}
                    {% for m in messages %}
                    {{ m.role }}:{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>
                    {%- endif %}{{ m.content or '' }}
                    {%- for c in m.tool_calls %}{{ c.function.name }}{% endfor %}{{ '\\n' }}
                    {%- endfor %}{{ reasoning_effort or '' }}assistant:
                    {%- if enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
                    """,
                    Map.of());

    private static final String CHAT = "{'messages':[{'role':'user','content':'x'}]";

    private static byte[] utf8(String json) {
        return json.replace('\'', '"').getBytes(StandardCharsets.UTF_8);
    }

    private static String send(TextGenerator generator, TextCall call) {
        TextAnswer answer = call.submit(generator);
        StringBuilder text = new StringBuilder();
        while (!answer.isComplete()) {
            answer.poll().ifPresentOrElse(text::append, Thread::onSpinWait);
        }
        return text.toString();
    }

    private static TextApi api(TextGenerator generator) {
        return new TextApi("tiny", generator, TEMPLATE);
    }

    private static String prompt(TextGenerator generator, TextCall call) {
        return generator
                .tokenizer()
                .orElseThrow()
                .decode(call.requests().get(0).promptTokens().orElseThrow());
    }

    private static final String ANSWER =
            "<think>\\nI ask.\\n</think>\\n\\nOk.<tool_call>\\n{\"name\": \"now\", \"arguments\":"
                    + " {}}\\n</tool_call>";
    private static final String TOOL = ",'tools':[{'type':'function','function':{'name':'now'}}]";

    @Test
    void chatsHaveTheReasoningBesideContentAndCalls() {
        try (FakeGenerator generator = new FakeGenerator(9999, request -> unescaped())) {
            String whole = send(generator, api(generator).chat(utf8(CHAT + TOOL + "}")));
            JsonObject message = TestJson.at(whole, "choices.0.message").getAsJsonObject();
            assertEquals("I ask.", message.get("reasoning_content").getAsString());
            assertEquals("Ok.", message.get("content").getAsString());
            assertEquals(1, message.getAsJsonArray("tool_calls").size());
            assertEquals(
                    7, // words and what is between
                    TestJson.at(whole, "usage.completion_tokens_details.reasoning_tokens")
                            .getAsInt());

            String hidden =
                    send(
                            generator,
                            api(generator).chat(utf8(CHAT + ",'include_reasoning':false}")));
            message = TestJson.at(hidden, "choices.0.message").getAsJsonObject();
            assertNull(message.get("reasoning_content"));
            assertTrue(message.get("content").getAsString().startsWith("Ok."));

            StringBuilder reasoning = new StringBuilder();
            StringBuilder content = new StringBuilder();
            String events = send(generator, api(generator).chat(utf8(CHAT + ",'stream':true}")));
            for (String line : events.replace("data: [DONE]", "").strip().split("\n\n")) {
                JsonObject delta =
                        TestJson.at(line.substring("data: ".length()), "choices.0.delta")
                                .getAsJsonObject();
                append(reasoning, delta, "reasoning_content");
                append(content, delta, "content");
            }
            assertEquals("I ask.", reasoning.toString());
            assertTrue(content.toString().startsWith("Ok.<tool_call>"), content.toString());
        }
    }

    private static String unescaped() {
        return ANSWER.replace("\\n", "\n");
    }

    private static void append(StringBuilder text, JsonObject delta, String name) {
        if (delta.has(name)) {
            text.append(delta.get(name).getAsString());
        }
    }

    @Test
    void responsesHaveReasoningItems() {
        try (FakeGenerator generator = new FakeGenerator(9999, request -> unescaped())) {
            String json = "{'input':'x','tools':[{'type':'function','name':'now'}]";
            JsonArray output =
                    TestJson.at(
                                    send(generator, api(generator).response(utf8(json + "}"))),
                                    "output")
                            .getAsJsonArray();
            assertEquals(List.of("reasoning", "message", "function_call"), types(output));
            JsonObject part =
                    output.get(0)
                            .getAsJsonObject()
                            .getAsJsonArray("content")
                            .get(0)
                            .getAsJsonObject();
            assertEquals("reasoning_text", part.get("type").getAsString());
            assertEquals("I ask.", part.get("text").getAsString());

            String events =
                    send(generator, api(generator).response(utf8(json + ",'stream':true}")));
            List<String> names = new ArrayList<>();
            for (String event : events.strip().split("\n\n")) {
                String name = event.substring("event: ".length(), event.indexOf('\n'));
                if (names.isEmpty() || !names.get(names.size() - 1).equals(name)) {
                    names.add(name);
                }
            }
            assertEquals(
                    List.of(
                            "response.created",
                            "response.in_progress",
                            "response.output_item.added",
                            "response.content_part.added",
                            "response.reasoning_text.delta",
                            "response.reasoning_text.done",
                            "response.content_part.done",
                            "response.output_item.done",
                            "response.output_item.added",
                            "response.content_part.added",
                            "response.output_text.delta",
                            "response.output_text.done"),
                    names.subList(0, 12));

            JsonObject again = JsonParser.parseString("{'input':[]}").getAsJsonObject();
            again.getAsJsonArray("input").addAll(output);
            assertEquals(
                    "assistant:<think>I ask.</think>Ok.now\nassistant:",
                    prompt(generator, api(generator).response(utf8(again.toString()))));
        }
    }

    private static List<String> types(JsonArray items) {
        List<String> types = new ArrayList<>();
        for (JsonElement item : items) {
            types.add(item.getAsJsonObject().get("type").getAsString());
        }
        return types;
    }

    @Test
    void theTemplateGetsTheHistoryAndTheEffort() {
        try (FakeGenerator generator = new FakeGenerator()) {
            TextApi api = api(generator);
            String history =
                    "{'messages':[{'role':'user','content':'a'},{'role':'assistant',"
                        + "'reasoning_content':'why','content':'b'},{'role':'user','content':'c'}]";
            assertEquals(
                    "user:a\nassistant:<think>why</think>b\nuser:c\nhighassistant:",
                    prompt(generator, api.chat(utf8(history + ",'reasoning_effort':'high'}"))));
            String off = "assistant:<think>\n\n</think>\n\n";
            for (String option :
                    List.of(
                            "'reasoning_effort':'none'",
                            "'enable_thinking':false",
                            "'chat_template_kwargs':{'enable_thinking':false}")) {
                String prompt = prompt(generator, api.chat(utf8(CHAT + "," + option + "}")));
                assertTrue(prompt.endsWith(off), prompt);
            }
            ApiException e =
                    assertThrows(
                            ApiException.class,
                            () -> api.chat(utf8(CHAT + ",'reasoning_effort':'much'}")));
            assertTrue(e.getMessage().startsWith("'reasoning_effort' must be one of"));
            TextApi plain = new TextApi("tiny", generator, ChatTemplate.PLAIN);
            e =
                    assertThrows(
                            ApiException.class,
                            () -> plain.chat(utf8(CHAT + ",'enable_thinking':true}")));
            assertTrue(e.getMessage().startsWith("'enable_thinking' must be left out"));
        }
    }

    /** Returns whether a grammar allows each byte of a text, and that the text ends. */
    private static boolean allows(Grammar grammar, String text) {
        List<byte[]> bytes = IntStream.range(0, 256).mapToObj(b -> new byte[] {(byte) b}).toList();
        Constraint constraint = new Constraint(grammar, new Vocabulary(bytes, 257), 256);
        for (byte b : text.getBytes(StandardCharsets.UTF_8)) {
            if ((constraint.mask()[(b & 255) / 32] >>> (b & 31) & 1) == 0) {
                return false;
            }
            constraint.accept(b & 255);
        }
        return (constraint.mask()[256 / 32] & 1) == 1;
    }

    @Test
    void theSchemaHoldsAfterTheReasoning() {
        try (FakeGenerator generator = new FakeGenerator()) {
            String schema = ",'guided_json':{'type':'object','properties':{'x':{'const':1}}}";
            Grammar grammar = grammar(api(generator), CHAT + schema + "}");
            assertTrue(allows(grammar, "{}"));
            assertTrue(allows(grammar, "<think>\nWhy < {1}?</think>\n\n{\"x\": 1}"));
            assertFalse(allows(grammar, "<think>why</think>no"));
            assertFalse(allows(grammar, "<think>why</think>{} </think>{}"));
            assertFalse(allows(grammar, "why</think>{}"));
            grammar = grammar(api(generator), CHAT + schema + ",'enable_thinking':false}");
            assertTrue(allows(grammar, "{}"));
            assertFalse(allows(grammar, "<think></think>{}"));
            TextApi r1 =
                    new TextApi("tiny", generator, TEMPLATE, null, ReasoningFormat.DEEPSEEK_R1);
            grammar = grammar(r1, CHAT + schema + "}");
            assertTrue(allows(grammar, "why</think>{}"));
            assertFalse(allows(grammar, "{}"));
            grammar = grammar(r1, CHAT + TOOL + ",'tool_choice':'required'}");
            assertTrue(
                    allows(
                            grammar,
                            "why</think>\n\n<tool_call>\n{\"name\": \"now\","
                                    + " \"arguments\": {}}\n</tool_call>"));
            assertFalse(allows(grammar, "<tool_call>"));
        }
    }

    private static Grammar grammar(TextApi api, String json) {
        return api.chat(utf8(json)).requests().get(0).grammar().orElseThrow();
    }
}
