// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.JsonParser;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

class ToolCallStreamTest {

    private static final Set<String> NAMES = Set.of("weather", "time");

    /** Reads an answer in pieces of a size. Returns its content, then each call. */
    private static List<String> read(ToolFormat format, String answer, int size, boolean forced) {
        ToolCallStream stream = new ToolCallStream(format, NAMES, forced);
        List<AnswerStream.Part> parts = new ArrayList<>();
        for (int i = 0; i < answer.length(); i += size) {
            parts.addAll(stream.add(answer.substring(i, Math.min(answer.length(), i + size))));
        }
        parts.addAll(stream.end());
        StringBuilder content = new StringBuilder();
        List<StringBuilder> calls = new ArrayList<>();
        for (AnswerStream.Part part : parts) {
            content.append(part.content());
            if (part.call() < 0) {
                assertFalse(part.content().isEmpty());
                continue;
            }
            if (part.id() != null) {
                assertEquals(calls.size(), part.call());
                calls.add(new StringBuilder(part.name()));
            } else {
                assertEquals(calls.size() - 1, part.call());
                assertNull(part.name());
            }
            calls.get(part.call()).append(part.arguments());
        }
        assertEquals(calls.size(), stream.calls());
        List<String> all = new ArrayList<>(List.of(content.toString()));
        calls.forEach(call -> all.add(call.toString()));
        return all;
    }

    /** Checks an answer in pieces of every size. */
    private static void check(ToolFormat format, String answer, String... expected) {
        for (int size = 1; size <= answer.length(); size++) {
            assertEquals(List.of(expected), read(format, answer, size, false), answer + size);
        }
    }

    @Test
    void hermes() {
        check(ToolFormat.HERMES, "Just < text.", "Just < text.");
        check(
                ToolFormat.HERMES,
                "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Köln {\\\"}\"}}\n"
                        + "</tool_call>",
                "",
                "weather{\"city\": \"Köln {\\\"}\"}");
        check(
                ToolFormat.HERMES,
                "Let me see.\n"
                        + "<tool_call>{\"name\":\"time\",\"arguments\":{}}</tool_call>\n"
                        + "<tool_call>{\"arguments\": {\"a\": [1, {}]}, \"name\":"
                        + " \"weather\"}</tool_call>\n",
                "Let me see.\n",
                "time{}",
                "weather{\"a\": [1, {}]}");
        check(
                ToolFormat.HERMES,
                "<tool_call>{\"name\": \"time\", \"arguments\": {}}</tool_call> and text",
                " and text",
                "time{}");
        check(ToolFormat.HERMES, "<tool_call>{\"name\": \"time\"}</tool_call>", "", "time{}");
        check(
                ToolFormat.HERMES,
                "<tool_call>{\"name\": \"time\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>",
                "",
                "time{\"a\": 1}");
    }

    @Test
    void llama() {
        check(ToolFormat.LLAMA3, " Text with {\"name\": 1}", " Text with {\"name\": 1}");
        check(
                ToolFormat.LLAMA3,
                "{\"type\": \"function\", \"name\": \"weather\", \"parameters\": {\"city\":"
                        + " \"X\"}}",
                "",
                "weather{\"city\": \"X\"}");
        check(
                ToolFormat.LLAMA3,
                "<|python_tag|>{\"name\": \"time\", \"parameters\": {}}; {\"name\": \"weather\","
                        + " \"parameters\": {\"n\": -1.5e3} }",
                "",
                "time{}",
                "weather{\"n\": -1.5e3}");
        // Other JSON is an answer.
        check(ToolFormat.LLAMA3, "{\"a\": {\"name\": \"time\"}}", "{\"a\": {\"name\": \"time\"}}");
        check(ToolFormat.LLAMA3, "{\"name\": \"other\"} x", "{\"name\": \"other\"} x");
    }

    @Test
    void mistral() {
        check(
                ToolFormat.MISTRAL,
                "[TOOL_CALLS] [{\"name\": \"weather\", \"arguments\": {\"city\": \"a]b\"}},"
                        + " {\"name\": \"time\", \"arguments\": {}}]",
                "",
                "weather{\"city\": \"a]b\"}",
                "time{}");
        check(ToolFormat.MISTRAL, "[TOOL] is no marker", "[TOOL] is no marker");
        String forced = "[{\"name\": \"time\", \"arguments\": {\"a\": null}}]";
        assertEquals(List.of("", "time{\"a\": null}"), read(ToolFormat.MISTRAL, forced, 3, true));
    }

    @Test
    void keepsTextThatIsNoCall() {
        check(ToolFormat.HERMES, "<tool_call>nothing", "<tool_call>nothing");
        check(ToolFormat.HERMES, "<tool_call>", "<tool_call>");
        check(ToolFormat.HERMES, "see <tool_ca", "see <tool_ca");
        String unknown = "<tool_call>{\"name\": \"other\", \"arguments\": {}}</tool_call>";
        check(ToolFormat.HERMES, unknown, unknown);
        String unfinished = "<tool_call>{\"arguments\": {\"a\": 1";
        check(ToolFormat.HERMES, unfinished, unfinished);
    }

    @Test
    void anAnswerThatIsCutHasTheArgumentsSoFar() {
        check(
                ToolFormat.HERMES,
                "<tool_call>{\"name\": \"time\", \"arguments\": {\"zone\": \"Eu",
                "",
                "time{\"zone\": \"Eu");
    }

    @Test
    void argumentsArriveWithTheirText() {
        ToolCallStream stream = new ToolCallStream(ToolFormat.HERMES, NAMES, false);
        assertTrue(stream.add("<tool_call>{\"na").isEmpty());
        List<AnswerStream.Part> parts = stream.add("me\": \"time\", \"arg");
        assertEquals("time", parts.get(0).name());
        assertTrue(parts.get(0).id().startsWith("call_"));
        assertEquals("{\"zone\"", stream.add("uments\": {\"zone\"").get(0).arguments());
        assertEquals(": \"E", stream.add(": \"E").get(0).arguments());
    }

    @Test
    void formatOfATemplate() {
        Map<String, Optional<ToolFormat>> formats =
                Map.of(
                        "{% if tools %}<tool_call>{% endif %}", Optional.of(ToolFormat.HERMES),
                        "{{ tools }}[TOOL_CALLS]", Optional.of(ToolFormat.MISTRAL),
                        "{{ tools }}<|python_tag|>", Optional.of(ToolFormat.LLAMA3),
                        "{{ tools }}'\"parameters\": '", Optional.of(ToolFormat.LLAMA3),
                        "{{ tools }}", Optional.empty(),
                        "<tool_call>", Optional.empty());
        formats.forEach(
                (jinja, format) ->
                        assertEquals(
                                format, ToolFormat.of(new ChatTemplate(jinja, Map.of())), jinja));
        assertEquals(Optional.empty(), ToolFormat.of(ChatTemplate.PLAIN));
    }

    @Test
    void formatsHaveTheNamesOfVllm() {
        assertEquals(ToolFormat.HERMES, ToolFormat.named("hermes"));
        assertEquals(ToolFormat.LLAMA3, ToolFormat.named("llama3_json"));
        assertEquals(ToolFormat.MISTRAL, ToolFormat.named("mistral"));
        for (String unknown : new String[] {"pythonic", null}) {
            assertThrows(IllegalArgumentException.class, () -> ToolFormat.named(unknown));
        }
    }

    @Test
    void refusesNullArguments() {
        ToolFormat format = ToolFormat.HERMES;
        List<Executable> calls =
                List.of(
                        () -> ToolFormat.of(null),
                        () -> format.grammar(null, true, true),
                        () -> format.grammar(Map.of(), true, true),
                        () -> new ToolCallStream(null, NAMES, false),
                        () -> new ToolCallStream(format, null, false),
                        () -> new ToolCallStream(format, NAMES, false).add(null));
        calls.forEach(call -> assertThrows(IllegalArgumentException.class, call));
    }

    @Test
    void givesEachCallAnIdOfItsOwn() {
        assertNotEquals(ToolFormat.HERMES.newId(), ToolFormat.HERMES.newId());
        // Mistral's template refuses others.
        assertTrue(ToolFormat.MISTRAL.newId().matches("[A-Za-z0-9]{9}"));
    }

    @Test
    void argumentsAreJson() {
        List<String> all =
                read(
                        ToolFormat.HERMES,
                        "<tool_call>{\"name\":\"time\",\"arguments\": {\"a\" : \"x\\\\\" , \"b\":["
                                + " ]} }</tool_call>",
                        4,
                        false);
        String arguments = all.get(1).substring("time".length());
        assertEquals(
                "x\\", JsonParser.parseString(arguments).getAsJsonObject().get("a").getAsString());
    }
}
