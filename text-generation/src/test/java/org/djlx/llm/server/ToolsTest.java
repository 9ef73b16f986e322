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
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.IntStream;
import org.djlx.llm.GeneratedPiece;
import org.djlx.llm.GenerationRequest;
import org.djlx.llm.engine.ByteTokens;
import org.djlx.llm.engine.TextEngine;
import org.djlx.llm.sampling.Constraint;
import org.djlx.llm.sampling.Grammar;
import org.djlx.llm.sampling.Vocabulary;
import org.djlx.llm.text.ChatFormat;
import org.djlx.llm.text.ChatTemplate;
import org.djlx.llm.text.ChatTools;
import org.djlx.llm.text.TextTokenizer;
import org.djlx.llm.text.ToolFormat;
import org.djlx.nativeops.TestJson;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;

/** Tools and structured output over the API, by a small random model with a token for each byte. */
@Timeout(120)
class ToolsTest {

    private static final ChatTemplate TEMPLATE =
            new ChatTemplate(
                    "{% for tool in tools or [] %}<tool_call>{{ tool.function.name }};{% endfor"
                        + " %}{% for m in messages %}{{ m.role }}:{{ m.content or '' }}{% for call"
                        + " in m.tool_calls %}{{ call.id }}={{ call.function.name }}({{"
                        + " call.function.arguments | tojson }}){% endfor %}{% if m.tool_call_id"
                        + " %}#{{ m.tool_call_id }}{% endif %}\n"
                        + "{% endfor %}",
                    Map.of());

    private static final String TOOLS =
            "'tools':[{'type':'function','function':{'name':'weather','description':'d','strict':true,"
                + "'parameters':{'type':'object','properties':{'city':{'enum':['Köln','Rom']},"
                + "'days':{'type':'integer','minimum':1,'maximum':20}},'required':['city'],"
                + "'additionalProperties':false}}},{'type':'function','function':{'name':'now'}}]";

    private static final String CHAT =
            "'messages':[{'role':'user','content':'x'}],'temperature':1.5,";

    @TempDir private static Path directory;
    private static TextEngine generator;

    @BeforeAll
    static void load() throws IOException {
        ByteTokens.writeModel(directory, 3);
        generator = TextEngine.builder().setDirectory(directory).build();
    }

    @AfterAll
    static void close() {
        generator.close();
    }

    private static TextApi api(ToolFormat format) {
        return new TextApi("tiny", generator, TEMPLATE, format, null);
    }

    private static TextCall read(ToolFormat format, String json) {
        return api(format).read(json.replace('\'', '"').getBytes(StandardCharsets.UTF_8));
    }

    private static String send(TextCall call) {
        TextAnswer answer = call.submit(generator);
        StringBuilder text = new StringBuilder();
        while (!answer.isComplete()) {
            answer.poll().ifPresentOrElse(text::append, Thread::onSpinWait);
        }
        return text.toString();
    }

    /** Sends a chat, streamed or not. Returns the choice, put together as clients do. */
    private static JsonObject choice(ToolFormat format, String json, boolean streamed) {
        String answer = send(read(format, "{'stream':" + streamed + "," + json + "}"));
        if (!streamed) {
            return TestJson.at(answer, "choices.0").getAsJsonObject();
        }
        JsonObject message = new JsonObject();
        JsonObject choice = new JsonObject();
        choice.add("message", message);
        StringBuilder content = new StringBuilder();
        JsonArray calls = new JsonArray();
        for (String line : answer.split("\n\n")) {
            if (line.equals("data: [DONE]")) {
                continue;
            }
            JsonObject event =
                    TestJson.at(line.substring("data: ".length()), "choices.0").getAsJsonObject();
            JsonObject delta = event.getAsJsonObject("delta");
            if (delta.has("content")) {
                content.append(delta.get("content").getAsString());
            }
            for (JsonElement each :
                    delta.has("tool_calls")
                            ? delta.getAsJsonArray("tool_calls")
                            : new JsonArray()) {
                add(calls, each.getAsJsonObject());
            }
            choice.add("finish_reason", event.get("finish_reason"));
        }
        message.addProperty("content", content.isEmpty() ? null : content.toString());
        if (!calls.isEmpty()) {
            message.add("tool_calls", calls);
        }
        return choice;
    }

    private static void add(JsonArray calls, JsonObject part) {
        int index = part.remove("index").getAsInt();
        JsonObject function = part.getAsJsonObject("function");
        if (index == calls.size()) {
            assertEquals("function", part.get("type").getAsString());
            calls.add(part);
            return;
        }
        assertEquals(calls.size() - 1, index);
        assertEquals(Set.of("function"), part.keySet());
        assertEquals(Set.of("arguments"), function.keySet());
        JsonObject whole = calls.get(index).getAsJsonObject().getAsJsonObject("function");
        whole.addProperty(
                "arguments",
                whole.get("arguments").getAsString() + function.get("arguments").getAsString());
    }

    /** Checks the calls of a choice. Returns their names. */
    private static List<String> calls(JsonObject choice) {
        List<String> names = new ArrayList<>();
        Set<String> ids = new HashSet<>();
        for (JsonElement each : choice.getAsJsonObject("message").getAsJsonArray("tool_calls")) {
            JsonObject call = each.getAsJsonObject();
            assertTrue(ids.add(call.get("id").getAsString()));
            JsonObject function = call.getAsJsonObject("function");
            String name = function.get("name").getAsString();
            names.add(name);
            JsonObject arguments =
                    JsonParser.parseString(function.get("arguments").getAsString())
                            .getAsJsonObject();
            if (name.equals("now")) {
                assertTrue(arguments.keySet().isEmpty());
                continue;
            }
            assertEquals("weather", name);
            assertTrue(Set.of("Köln", "Rom").contains(arguments.get("city").getAsString()));
            if (arguments.has("days")) {
                int days = arguments.get("days").getAsInt();
                assertTrue(days >= 1 && days <= 20);
            }
        }
        return names;
    }

    @ParameterizedTest
    @EnumSource
    void forcedCallsFollowTheirSchemas(ToolFormat format) {
        Set<String> called = new HashSet<>();
        int several = 0;
        for (int seed = 0; seed < 12; seed++) {
            String json = CHAT + TOOLS + ",'tool_choice':'required','seed':" + seed;
            JsonObject choice = choice(format, json, seed % 2 == 0);
            boolean isCut = choice.get("finish_reason").getAsString().equals("length");
            if (!isCut) {
                assertEquals("tool_calls", choice.get("finish_reason").getAsString());
                assertTrue(choice.getAsJsonObject("message").get("content").isJsonNull());
                List<String> names = calls(choice);
                called.addAll(names);
            }
            JsonElement found = choice.getAsJsonObject("message").get("tool_calls");
            several += found != null && found.getAsJsonArray().size() > 1 ? 1 : 0;
        }
        assertEquals(Set.of("weather", "now"), called);
        assertTrue(several > 0, "no answer has parallel calls");
    }

    @ParameterizedTest
    @EnumSource
    void streamedCallsAreThoseOfWholeAnswers(ToolFormat format) {
        String json = CHAT + TOOLS + ",'tool_choice':'required','seed':5";
        JsonObject whole = choice(format, json, false);
        JsonObject streamed = choice(format, json, true);
        for (JsonObject each : List.of(whole, streamed)) {
            each.remove("index");
            each.remove("logprobs");
            each.getAsJsonObject("message").remove("role");
            each.getAsJsonObject("message")
                    .getAsJsonArray("tool_calls")
                    .forEach(call -> call.getAsJsonObject().remove("id"));
        }
        assertEquals(whole, streamed);
    }

    @ParameterizedTest
    @EnumSource
    void aNamedFunctionIsCalledOnce(ToolFormat format) {
        for (int seed = 0; seed < 5; seed++) {
            String named = ",'tool_choice':{'type':'function','function':{'name':'weather'}}";
            String json = CHAT + TOOLS + named + ",'seed':" + seed;
            assertEquals(List.of("weather"), calls(choice(format, json, false)));
            String one = ",'tool_choice':'required','parallel_tool_calls':false,'seed':" + seed;
            assertEquals(1, calls(choice(format, CHAT + TOOLS + one, true)).size());
        }
    }

    @Test
    void withAutoTheModelMayAnswer() {
        String json = CHAT + TOOLS + ",'max_tokens':20,'seed':1";
        for (boolean streamed : new boolean[] {false, true}) {
            JsonObject message =
                    choice(ToolFormat.HERMES, json, streamed).getAsJsonObject("message");
            assertFalse(message.get("content").getAsString().isEmpty());
            assertNull(message.get("tool_calls"));
        }
    }

    @Test
    void besideAGrammarAnswersAndCallsFollowTheirs() {
        String json = "{" + CHAT + TOOLS + ",'guided_regex':'[0-9]+'}";
        TextCall call = read(ToolFormat.HERMES, json);
        assertTrue(isAllowed(call, "42"));
        assertTrue(
                isAllowed(
                        call, "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>"));
        assertFalse(isAllowed(call, "no"));
        ApiException e = assertThrows(ApiException.class, () -> read(ToolFormat.MISTRAL, json));
        assertTrue(e.getMessage().contains("'tool_choice'"), e::getMessage);
    }

    @Test
    void anAnswerOfMaximumLengthIsCut() {
        String json = CHAT + "'guided_regex':'a{9}','max_tokens':4";
        JsonObject choice = choice(ToolFormat.HERMES, json, false);
        assertEquals("length", choice.get("finish_reason").getAsString());
        assertEquals("aaaa", choice.getAsJsonObject("message").get("content").getAsString());
    }

    /** Returns whether an answer may be a text, and may end there. */
    private static boolean isAllowed(TextCall call, String text) {
        Vocabulary bytes =
                new Vocabulary(
                        IntStream.range(0, 256).mapToObj(b -> new byte[] {(byte) b}).toList(), 257);
        Grammar grammar = call.requests().get(0).grammar().orElseThrow();
        Constraint constraint = new Constraint(grammar, bytes, 256);
        for (byte b : text.getBytes(StandardCharsets.UTF_8)) {
            int token = b & 255;
            if ((constraint.mask()[token / 32] >>> token & 1) == 0) {
                return false;
            }
            constraint.accept(token);
        }
        return (constraint.mask()[8] & 1) != 0;
    }

    @Test
    void strictToolsLimitTheirCallsOnly() {
        String rome = "{\"name\": \"weather\", \"arguments\": {\"city\": \"Rom\"}}";
        String paris = rome.replace("Rom", "Paris");
        TextCall hermes = read(ToolFormat.HERMES, "{" + CHAT + TOOLS + "}");
        for (String text : List.of("", "Is 1 < 2? {}", "<tool_cal", "<<tool_call\n")) {
            assertTrue(isAllowed(hermes, text), text);
            String begin = text + "<tool_call>\n";
            assertTrue(isAllowed(hermes, begin + rome + "\n</tool_call>"), text);
            assertFalse(isAllowed(hermes, begin + paris + "\n</tool_call>"), text);
            assertFalse(isAllowed(hermes, begin), text);
        }
        String two = "<tool_call>\n" + rome + "\n</tool_call>\n<tool_call>\n";
        assertTrue(isAllowed(hermes, two + rome + "\n</tool_call>"));
        assertFalse(isAllowed(hermes, two + paris + "\n</tool_call>"));

        TextCall llama = read(ToolFormat.LLAMA3, "{" + CHAT + TOOLS + "}");
        assertTrue(isAllowed(llama, "Text with {\"name\": 1}"));
        assertTrue(isAllowed(llama, rome.replace("arguments", "parameters")));
        assertFalse(isAllowed(llama, paris.replace("arguments", "parameters")));
        assertFalse(isAllowed(llama, " \u2003{\"name\": 1}"), "the stream reads it as a call");
        assertFalse(isAllowed(llama, "<|python_tag|>{}"));

        String free = "{" + CHAT + TOOLS.replace("'strict':true,", "") + "}";
        assertTrue(read(ToolFormat.HERMES, free).requests().get(0).grammar().isEmpty());
        ApiException e =
                assertThrows(
                        ApiException.class,
                        () -> read(ToolFormat.MISTRAL, "{" + CHAT + TOOLS + "}"));
        assertTrue(e.getMessage().contains("'tool_choice'"), e::getMessage);
    }

    private static String prompt(TextCall call) {
        int[] tokens = call.requests().get(0).promptTokens().orElseThrow();
        byte[] bytes = new byte[tokens.length];
        for (int i = 0; i < tokens.length; i++) {
            bytes[i] = (byte) tokens[i];
        }
        return new String(bytes, StandardCharsets.UTF_8);
    }

    @Test
    void templatesGetToolsCallsAndResults() {
        String chat =
                "'messages':[{'role':'user','content':'x'},{'role':'assistant','content':null,"
                        + "'tool_calls':[{'id':'c1','type':'function','function':{'name':'now',"
                        + "'arguments':'{\\\'a\\\': [1]}'}}]},{'role':'tool','tool_call_id':'c1',"
                        + "'content':[{'type':'text','text':'12:00'}],'name':'now'}]";
        assertEquals(
                "<tool_call>weather;<tool_call>now;user:xassistant:c1=now({\"a\": [1]})"
                        + "tool:12:00#c1",
                prompt(read(ToolFormat.HERMES, "{" + chat + "," + TOOLS + "}")));
        String none =
                prompt(read(ToolFormat.HERMES, "{" + CHAT + TOOLS + ",'tool_choice':'none'}"));
        assertEquals("user:x", none);
        String forced = ",'tool_choice':'required'}";
        assertTrue(
                prompt(read(ToolFormat.MISTRAL, "{" + CHAT + TOOLS + forced))
                        .endsWith("[TOOL_CALLS]"));
    }

    @Test
    void theTemplateDecidesTheToolFormat() {
        assertTrue(
                read(null, "{" + CHAT + TOOLS + ",'tool_choice':'required'}")
                        .requests()
                        .get(0)
                        .grammar()
                        .orElseThrow()
                        .toString()
                        .contains("<tool_call>"));
    }

    /** The marker is a special token, which detokenizing leaves out. */
    @Test
    void aMarkerMayBeASpecialToken() {
        TextTokenizer tokenizer =
                new TextTokenizer() {
                    @Override
                    public int[] encode(String text, boolean specialTokens) {
                        return new int[] {9};
                    }

                    @Override
                    public String decode(int[] tokens) {
                        return "";
                    }

                    @Override
                    public Set<String> specialTokens() {
                        return Set.of("[TOOL_CALLS]");
                    }

                    @Override
                    public void close() {}
                };
        ChatFormat chat = new ChatFormat(tokenizer, ChatTemplate.PLAIN, ToolFormat.MISTRAL, null);
        ChatTools tools = new ChatTools(List.of(new ChatTools.Tool("now", null, null)));
        OpenAiAnswer format =
                new OpenAiAnswer(
                        true,
                        false,
                        false,
                        List.of(""),
                        1,
                        null,
                        () -> chat.newParts(new int[] {1}, tools, true),
                        "",
                        false);
        TextCall call =
                new TextCall(
                        List.of(GenerationRequest.builder().setPrompt("x").optMaxTokens(1).build()),
                        format,
                        "max_tokens");
        List<GeneratedPiece> pieces =
                List.of(
                        new GeneratedPiece(9, "", 0),
                        new GeneratedPiece(1, "[{\"name\": \"now\", \"arguments\": {}}]", 0));
        var ended = generator.submit(call.requests().get(0));
        while (ended.finishReason().isEmpty()) {
            Thread.onSpinWait();
        }
        String answer = format.whole(List.of(pieces), List.of(ended));
        JsonElement calls = TestJson.at(answer, "choices.0.message.tool_calls");
        assertEquals(1, calls.getAsJsonArray().size());
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            quoteCharacter = '\0',
            textBlock =
                    """
                    'tool_choice':'required' | tool_choice
                    'tools':[{'type':'code_interpreter'}] | tools[0].type
                    'tools':[{'type':'function','function':{'name':''}}] | tools[0].function.name
                    'tools':[{'type':'function','function':{'name':'a b'}}] | tools[0].function.name
                    'tools':[{'type':'function','function':{'name':'a','x':1}}] | tools[0].function.x
                    'tools':[{'type':'function','function':{'name':'a','parameters':[]}}] | tools[0].function.parameters
                    'tools':[{'type':'function','function':{'name':'a'}},{'type':'function','function':{'name':'a'}}] | tools[1].function.name
                    'tools':[{'type':'function','function':{'name':'a'}}],'tool_choice':'always' | tool_choice
                    'tools':[{'type':'function','function':{'name':'a'}}],'tool_choice':{'type':'function','function':{'name':'b'}} | tool_choice
                    'tools':[{'type':'function','function':{'name':'a'}}],'tool_choice':{'type':'allowed_tools'} | tool_choice.type
                    'tools':[{'type':'function','function':{'name':'a','strict':true,'parameters':{'not':{}}}}],'tool_choice':'required' | tools
                    'tools':[{'type':'function','function':{'name':'a','strict':true,'parameters':{'not':{}}}}] | tools
                    'response_format':{'type':'json_schema'} | response_format.json_schema.schema
                    'response_format':{'type':'json_schema','json_schema':{'schema':{'not':{}}}} | response_format.json_schema.schema
                    'response_format':{'type':'json_object','schema':{}} | response_format.schema
                    'guided_regex':'(?=a)' | guided_regex
                    'guided_choice':[] | guided_choice
                    'guided_json':{'type':'x'} | guided_json
                    'guided_json':{},'guided_choice':['a'] | guided_choice
                    'guided_grammar':'x' | guided_grammar
                    """)
    void wrongRequestsAreRefusedByName(String option, String name) {
        ApiException e =
                assertThrows(
                        ApiException.class,
                        () -> read(ToolFormat.HERMES, "{" + CHAT + option + "}"));
        assertEquals(400, e.status());
        assertTrue(e.getMessage().contains("'" + name + "'"), e.getMessage());
    }

    @Test
    void parametersMayBeAReference() {
        String tools =
                "'tools':[{'type':'function','function':{'name':'now','parameters':{'$ref':"
                        + "'#/$defs/a','$defs':{'a':{'type':'object','properties':{}}}}}}],"
                        + "'tool_choice':'required','parallel_tool_calls':false";
        assertEquals(List.of("now"), calls(choice(ToolFormat.LLAMA3, CHAT + tools, false)));
    }

    @Test
    void aModelWithoutAFormatRefusesTools() {
        TextApi plain = new TextApi("tiny", generator, ChatTemplate.PLAIN);
        byte[] json =
                ("{" + CHAT + TOOLS + "}").replace('\'', '"').getBytes(StandardCharsets.UTF_8);
        ApiException e = assertThrows(ApiException.class, () -> plain.chat(json));
        assertTrue(e.getMessage().contains("'tools'"), e.getMessage());
    }

    @Test
    void aTemplateThatDoesNotReadToolsRefusesThem() {
        ChatTemplate blind = new ChatTemplate("{{ messages[0].content }}", Map.of());
        TextApi api = new TextApi("tiny", generator, blind, ToolFormat.HERMES, null);
        byte[] json =
                ("{" + CHAT + TOOLS + "}").replace('\'', '"').getBytes(StandardCharsets.UTF_8);
        ApiException e = assertThrows(ApiException.class, () -> api.chat(json));
        assertTrue(e.toJson().contains("\"param\":\"tools\""), e.toJson());
        assertTrue(e.getMessage().contains("does not read tools"), e.getMessage());
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '~',
            quoteCharacter = '\0',
            textBlock =
                    """
                    'response_format':{'type':'json_schema','json_schema':{'name':'n','strict':true,'schema':{'enum':[{'a':[1]},{'b':null}]}}} ~ \\{"a":\\[1]}|\\{"b":null}
                    'guided_json':{'type':'array','items':{'type':'boolean'},'maxItems':3} ~ \\[[\\s\\S]*]
                    'guided_choice':['yes','no','größer'] ~ yes|no|größer
                    'guided_regex':'[a-c]{2,5}(?:é|中)' ~ [a-c]{2,5}[é中]
                    """)
    void answersHaveTheWantedStructure(String option, String regex) {
        for (int seed = 0; seed < 4; seed++) {
            String json = CHAT + option + ",'seed':" + seed;
            JsonObject choice = choice(ToolFormat.HERMES, json, seed % 2 == 0);
            String text = choice.getAsJsonObject("message").get("content").getAsString();
            assertTrue(text.matches(regex), text);
            assertEquals("stop", choice.get("finish_reason").getAsString());
            String prompt = "{'prompt':'x','max_tokens':100," + option + "}";
            String completion = send(read(ToolFormat.HERMES, prompt));
            String answer = TestJson.at(completion, "choices.0.text").getAsString();
            assertTrue(answer.matches(regex), answer);
        }
    }

    @Test
    void responsesHaveTheWantedStructure() {
        String format =
                "{'type':'json_schema','name':'n','strict':true,'schema':{'properties':{'a':{'type':"
                    + "'boolean'}},'required':['a'],'additionalProperties':false}}";
        byte[] json =
                ("{'input':'x','temperature':1,'text':{'format':" + format + "}}")
                        .replace('\'', '"')
                        .getBytes(StandardCharsets.UTF_8);
        String answer = send(api(null).response(json));
        String text = TestJson.at(answer, "output.0.content.0.text").getAsString();
        assertEquals(Set.of("a"), JsonParser.parseString(text).getAsJsonObject().keySet());
        assertEquals("completed", TestJson.at(answer, "status").getAsString());
    }

    /** {@link #TOOLS} in the schema of responses, where a function stands beside its type. */
    private static String responseTools() {
        JsonObject tools =
                JsonParser.parseString("{" + TOOLS.replace('\'', '"') + "}").getAsJsonObject();
        for (JsonElement each : tools.getAsJsonArray("tools")) {
            JsonObject tool = each.getAsJsonObject();
            ((JsonObject) tool.remove("function"))
                    .entrySet()
                    .forEach(e -> tool.add(e.getKey(), e.getValue()));
        }
        return "\"tools\":" + tools.get("tools");
    }

    private static TextCall response(ToolFormat format, String json) {
        return api(format).response(json.replace('\'', '"').getBytes(StandardCharsets.UTF_8));
    }

    /** Puts the items of a streamed response together as clients do, and checks each event. */
    private static JsonObject response(String stream) {
        JsonArray output = new JsonArray();
        JsonObject response = null;
        int count = 0;
        for (String lines : stream.split("\n\n")) {
            JsonObject event =
                    JsonParser.parseString(lines.substring(lines.indexOf("data: ") + 6))
                            .getAsJsonObject();
            String type = event.get("type").getAsString();
            assertTrue(lines.startsWith("event: " + type + "\n"), lines);
            assertEquals(count++, event.get("sequence_number").getAsInt());
            if (type.equals("response.output_item.added")) {
                assertEquals(output.size(), event.get("output_index").getAsInt());
                output.add(event.get("item"));
                continue;
            }
            if (event.has("response")) {
                response = event.getAsJsonObject("response");
                continue;
            }
            assertEquals(output.size() - 1, event.get("output_index").getAsInt());
            JsonObject item = output.get(output.size() - 1).getAsJsonObject();
            assertEquals(item.get("id"), event.get("item_id"));
            switch (type.substring("response.".length())) {
                case "content_part.added" -> item.getAsJsonArray("content").add(event.get("part"));
                case "output_text.delta" ->
                        append(
                                item.getAsJsonArray("content").get(0).getAsJsonObject(),
                                "text",
                                event.get("delta"));
                case "function_call_arguments.delta" ->
                        append(item, "arguments", event.get("delta"));
                case "output_text.done" ->
                        assertEquals(
                                TestJson.at(item.toString(), "content.0.text"), event.get("text"));
                case "content_part.done" ->
                        item.getAsJsonArray("content").set(0, event.get("part"));
                case "function_call_arguments.done" ->
                        assertEquals(item.get("arguments"), event.get("arguments"));
                case "output_item.done" -> {
                    item.add("status", event.getAsJsonObject("item").get("status"));
                    assertEquals(item, event.get("item"));
                }
                default -> throw new AssertionError(type);
            }
        }
        assertEquals(output, response.get("output"));
        return response;
    }

    private static void append(JsonObject json, String name, JsonElement more) {
        json.addProperty(name, json.get(name).getAsString() + more.getAsString());
    }

    /** Returns the calls of a response as the choice of a chat. */
    private static JsonObject asChoice(JsonObject response) {
        JsonArray calls = new JsonArray();
        for (JsonElement each : response.getAsJsonArray("output")) {
            JsonObject item = each.getAsJsonObject();
            assertEquals("function_call", item.get("type").getAsString());
            assertEquals("completed", item.get("status").getAsString());
            JsonObject call = JsonOptions.object("id", item.get("call_id"));
            call.add("function", item);
            calls.add(call);
        }
        return JsonOptions.object("message", JsonOptions.object("tool_calls", calls));
    }

    @ParameterizedTest
    @EnumSource
    void responsesCallTools(ToolFormat format) {
        Set<String> called = new HashSet<>();
        int several = 0;
        for (int seed = 0; seed < 6; seed++) {
            String json =
                    "{'input':'x','temperature':1.5,'tool_choice':'required','seed':"
                            + seed
                            + ","
                            + responseTools();
            JsonObject whole =
                    JsonParser.parseString(send(response(format, json + "}"))).getAsJsonObject();
            JsonObject streamed = response(send(response(format, json + ",'stream':true}")));
            several += whole.getAsJsonArray("output").size() > 1 ? 1 : 0;
            if (whole.get("status").getAsString().equals("completed")) {
                List<String> names = calls(asChoice(whole));
                assertEquals(names, calls(asChoice(streamed)));
                called.addAll(names);
            }
        }
        assertEquals(Set.of("weather", "now"), called);
        assertTrue(several > 0, "no answer has parallel calls");
        String one =
                "{'input':'x','tool_choice':{'type':'function','name':'weather'},"
                        + responseTools()
                        + "}";
        JsonElement named = JsonParser.parseString(send(response(format, one)));
        assertEquals(List.of("weather"), calls(asChoice(named.getAsJsonObject())));
    }

    @Test
    void textAndCallsAreItemsInTheirOrder() {
        String text = "Hi <tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call> bye";
        String json =
                "{'input':'x','include':['message.output_text.logprobs'],"
                        + responseTools().replace("\"strict\":true,", "")
                        + ",'stream':";
        var ended =
                generator.submit(
                        GenerationRequest.builder().setPrompt("x").optMaxTokens(1).build());
        while (ended.finishReason().isEmpty()) {
            Thread.onSpinWait();
        }
        List<GeneratedPiece> pieces =
                text.chars()
                        .mapToObj(c -> new GeneratedPiece(c, Character.toString(c), -0.5f))
                        .toList();
        AnswerFormat format = response(ToolFormat.HERMES, json + "true}").format();
        StringBuilder stream = new StringBuilder(format.begin());
        pieces.forEach(piece -> stream.append(format.piece(0, piece, ended)));
        stream.append(format.end(0, ended)).append(format.end(List.of(ended)));
        String whole =
                response(ToolFormat.HERMES, json + "false}")
                        .format()
                        .whole(List.of(pieces), List.of(ended));
        for (JsonElement response :
                List.of(response(stream.toString()), JsonParser.parseString(whole))) {
            JsonArray output = response.getAsJsonObject().getAsJsonArray("output");
            assertEquals(3, output.size());
            for (int i = 0; i < 3; i += 2) {
                JsonElement content = TestJson.at(output.get(i).toString(), "content.0");
                String written = content.getAsJsonObject().get("text").getAsString();
                assertEquals(i == 0 ? "Hi " : " bye", written);
                StringBuilder listed = new StringBuilder();
                for (JsonElement each : content.getAsJsonObject().getAsJsonArray("logprobs")) {
                    listed.append(each.getAsJsonObject().get("token").getAsString());
                }
                assertEquals(written, listed.toString());
            }
            JsonObject call = output.get(1).getAsJsonObject();
            assertEquals("now", call.get("name").getAsString());
            assertEquals("{}", call.get("arguments").getAsString());
        }
    }

    @Test
    void responsesTakeCallsAndResults() {
        String items =
                "{'input':[{'role':'user','content':'x'},{'type':'message','role':'assistant','id':"
                    + "'m','status':'completed','content':[{'type':'output_text','text':'y'}]},"
                    + "{'type':'function_call','id':'fc','call_id':'c1','name':'now','arguments':"
                    + "'{\\\'a\\\':1}','status':'completed'},{'type':'function_call','call_id':'c2',"
                    + "'name':'now','arguments':''},{'type':'function_call_output','call_id':'c1',"
                    + "'output':'12:00'},{'type':'function_call_output','call_id':'c2','output':"
                    + "[{'type':'input_text','text':'12:01'}]},{'type':'function_call','call_id':"
                    + "'c3','name':'now','arguments':'{}'}],";
        String prompt =
                "user:xassistant:yc1=now({\"a\": 1})c2=now({})tool:12:00#c1tool:12:01#c2"
                        + "assistant:c3=now({})";
        TextCall call = response(ToolFormat.HERMES, items + responseTools() + "}");
        assertEquals(
                "<tool_call>weather;<tool_call>now;" + prompt, prompt(call).replace("null", ""));
        TextCall none = response(null, items + responseTools() + ",'tool_choice':'none'}");
        assertEquals(prompt, prompt(none).replace("null", ""));
    }
}
