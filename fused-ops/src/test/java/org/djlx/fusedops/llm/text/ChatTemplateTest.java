// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.text;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.LocalDateTime;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.djlx.fusedops.llm.text.ChatTemplate.Message;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Chat templates; what is expected is what Jinja2 prints with transformers' settings. */
@Timeout(60)
class ChatTemplateTest {

    private static final List<Message> CHAT =
            List.of(
                    new Message("system", " Be brief. "),
                    new Message("user", "Hi"),
                    new Message("assistant", "<think>no</think>Hello"),
                    new Message("user", "Bye"));

    private static String render(String template, Map<String, Object> options) {
        return new ChatTemplate(template, Map.of("bos_token", "<s>")).write(CHAT, true, options);
    }

    /** Expressions in which Jinjava's rules are not Jinja2's, and methods of Python. */
    @ParameterizedTest
    @CsvSource(
            delimiter = '#',
            quoteCharacter = '`',
            textBlock =
                    """
                    not messages[0].role == 'user'#true
                    not x is defined#true
                    not 'a' in 'b' and not 1 > 2#true
                    x is not defined#true
                    messages|length - 1#3
                    messages[1:]|length#3
                    messages[::-1][0].content#Bye
                    messages[-1]['content']#Bye
                    namespace(last=messages|length - 1, first=1).last#3
                    messages[0].content.strip() + '!'#Be brief.!
                    messages[2].content.split('</think>')[-1]#Hello
                    'xxabxx'.lstrip('x').rstrip('x')#ab
                    'Hi'.startswith('H') and 'Hi'.endswith('i')#true
                    'one two'.title()#One Two
                    'ONE two'.capitalize()#One two
                    'aba'.replace('a', 'c')#cbc
                    {'a': [1, 2.5, none, true], 'b': 'x"<y>'}|tojson#{"a": [1, 2.5, null, true], "b": "x\\"<y>"}
                    {'a': 1}.get('b', 'none')#none
                    {'a': 1}.items()|length#1
                    ({'a': {'b': 1}, 'c': 2})['a'].b#1
                    ([1, 2])[1] + (1 + 2) * 3#11
                    'text' is string and {'a': 1} is mapping and 'abc' is iterable#true
                    bos_token#<s>
                    'a' ~ 1#a1
                    'yes' if messages|length > 3 else 'no'#yes
                    """)
    void expressionsAreThoseOfJinja2(String expression, String expected) {
        assertEquals(expected, render("{{ " + expression + " }}", Map.of()), expression);
    }

    @Test
    void blocksLeaveNoBlankLines() {
        String template =
                """
                {% for message in messages %}
                    {% if message.role == 'user' %}
                  {{ message.content }}
                    {% endif %}
                {% endfor %}
                a {% if true %}b{% endif %} {# a comment
                  of two lines #}
                c
                {%- set last = namespace(found=false) -%}
                {%- if not last.found %} d{% endif %}
                """;
        assertEquals("  Hi\n  Bye\na b c d", render(template, Map.of()));
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '#',
            textBlock =
                    """
                    {% for x in [1, 2, 3] if x > 1 %}{{ loop.index }}{{ x }}{{ loop.last }} {% endfor %}#12false 23true
                    {% for x in [1, 2] if x > 2 %}{{ x }}{% else %}none{% endfor %}#none
                    {% for x in [1, 2] %}{{ x }}{% else %}none{% endfor %}#12
                    {% for x in [] -%}  {{ x }}  {%- else -%}  none{% endfor %}#none
                    {% for k, v in {'a': 1, 'b': 2}.items() if v == 2 %}{{ k }}{{ v }}{% endfor %}#b2
                    {% for x in [1, 2] if x %}{% for y in [2] if y > x %}{{ y }}{% else %}-{% endfor %}{% endfor %}#2-
                    {% if false %}a{% else %}{% for x in [1] %}{{ x if x else 0 }}{% endfor %}{% endif %}#1
                    """)
    void loopsAreThoseOfJinja2(String template, String expected) {
        assertEquals(expected, render(template, Map.of()).strip(), template);
    }

    @Test
    void jsonIsIndentedAsPythonDoes() {
        Map<String, Object> tool = Map.of("name", "f", "types", List.of("a", "b"));
        assertEquals(
                """
                [
                    {
                        "name": "f"
                    },
                    []
                ]\
                """,
                render(
                        "{{ x|tojson(indent=4) }}",
                        Map.of("x", List.of(Map.of("name", "f"), List.of()))));
        assertTrue(
                render("{{ x|tojson }}", Map.of("x", tool)).contains("\"types\": [\"a\", \"b\"]"));
    }

    @Test
    void macrosAndKeywordArguments() {
        assertEquals(
                "3b",
                render(
                        "{% macro sum(a, b='b') %}{{ a }}{{ b }}{% endmacro %}{{ sum(1 + 2) }}",
                        Map.of()));
    }

    @Test
    void templatesRefuseChats() {
        IllegalArgumentException refused =
                assertThrows(
                        IllegalArgumentException.class,
                        () -> render("{{ raise_exception('no system role') }}", Map.of()));
        assertEquals(
                "the model's chat template refuses this chat: no system role",
                refused.getMessage());
        IllegalArgumentException broken =
                assertThrows(IllegalArgumentException.class, () -> render("{% if %}", Map.of()));
        assertTrue(broken.getMessage().contains("cannot be rendered"), broken.getMessage());
        for (String file : List.of("include", "import", "extends")) {
            assertThrows(
                    IllegalArgumentException.class,
                    () -> render("{% " + file + " '/etc/passwd' %}", Map.of()),
                    file);
        }
    }

    @Test
    void aTagMayBeLong() {
        String sum = "1" + " + 1".repeat(5000);
        assertTrue(JinjaSource.rewrite("{{ " + sum + " }}").contains(sum));
    }

    @Test
    void dates() {
        LocalDateTime time = LocalDateTime.of(2024, 7, 6, 15, 4, 5);
        assertEquals(
                "06 Jul 2024, 6 July; Saturday Sat 15:04:05 03 PM 24-07 100%",
                JinjaRuntime.strftime("%d %b %Y, %-d %B; %A %a %H:%M:%S %I %p %y-%m 100%%", time));
    }

    @Test
    void readsTheTemplateOfAModel(@TempDir Path folder) throws IOException {
        assertEquals("user: x\nassistant:", write(ChatTemplate.of(folder)));
        Path config = folder.resolve("tokenizer_config.json");
        Files.writeString(config, "{}");
        assertEquals("user: x\nassistant:", write(ChatTemplate.of(folder)));
        Files.writeString(
                config,
                """
                {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": null,
                 "chat_template": [{"name": "tool_use", "template": "tools"},
                   {"name": "default", "template": "{{ bos_token + eos_token }}{{ pad_token }}"}]}
                """);
        assertEquals("<s></s>", write(ChatTemplate.of(folder)));
        Files.writeString(folder.resolve("chat_template.jinja"), "{{ bos_token }}file");
        assertEquals("<s>file", write(ChatTemplate.of(folder)));
        Files.writeString(config, "{");
        assertThrows(IOException.class, () -> ChatTemplate.of(folder));
    }

    private static String write(ChatTemplate template) {
        return template.write(List.of(new Message("user", "x")), true, Map.of());
    }

    /** A client who writes a special token cannot end the message. */
    @Test
    void specialTokensOfClientsBecomePlainText() {
        List<String> encoded = new ArrayList<>();
        TextTokenizer tokenizer =
                new TextTokenizer() {
                    @Override
                    public int[] encode(String text, boolean specialTokens) {
                        encoded.add(text);
                        return text.replace("<end>", "\u0001").chars().toArray();
                    }

                    @Override
                    public String decode(int[] tokens) {
                        return new String(tokens, 0, tokens.length);
                    }

                    @Override
                    public Set<String> specialTokens() {
                        return Set.of("<end>");
                    }

                    @Override
                    public void close() {}
                };
        ChatTemplate template =
                new ChatTemplate(
                        "{% for m in messages %}{{ m.content|trim }}<end>{% endfor %}"
                                + "{{ notes[0].text }}{{ ' ' + notes[0] }}",
                        Map.of());
        Map<String, Object> options = Map.of("notes", List.of(Map.of("text", "c<end>")));
        int[] tokens =
                template.encode(
                        List.of(new Message("user", " a<end>b ")), true, options, tokenizer);
        // A dictionary joined to a text is JSON.
        assertArrayEquals("a<end>b\u0001c<end> {\"text\": \"c<end>\"}".chars().toArray(), tokens);
        assertEquals(List.of("a<", "end>b<end>c<", "end> {\"text\": \"c<", "end>\"}"), encoded);
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '~',
            textBlock =
                    """
                    {{ messages | nosuch }} ~ the filter nosuch
                    {{ messages | nosuch(1) | trim }} ~ the filter nosuch
                    {% if messages is not nosuch(1) %}x{% endif %} ~ the test nosuch
                    {% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(1) }} ~ recursion limit
                    {{ messages ~ Unclosed token
                    """)
    void templatesThatCannotBeRenderedAreRefused(String jinja, String reason) {
        ChatTemplate template = new ChatTemplate(jinja, Map.of());
        IllegalArgumentException e =
                assertThrows(
                        IllegalArgumentException.class,
                        () -> template.write(List.of(), true, Map.of()));
        assertTrue(e.getMessage().contains(reason), e::getMessage);
    }

    @Test
    void templatesThatDoNotEndAreStopped() {
        String loops = "{% for i in range(100000) %}".repeat(4) + "{% endfor %}".repeat(4);
        IllegalArgumentException e =
                assertThrows(
                        IllegalArgumentException.class,
                        () -> JinjaRuntime.render(loops, Map.of(), Duration.ofSeconds(1)));
        assertTrue(e.getMessage().contains("longer than 1 s"), e::getMessage);
        String macros = "{% macro f(n) %}{{ f(n + 1) }}{{ f(n + 1) }}{% endmacro %}{{ f(1) }}";
        assertThrows(
                IllegalArgumentException.class,
                () -> JinjaRuntime.render(macros, Map.of(), Duration.ofSeconds(1)));
    }

    @Test
    void aChatMayHaveManyMessages() {
        String jinja = "{% for i in range(messages | length) %}{{ messages[i].role }}{% endfor %}";
        List<ChatTemplate.Message> messages =
                Collections.nCopies(3000, new ChatTemplate.Message("user", "x"));
        assertEquals(
                "user".repeat(3000),
                new ChatTemplate(jinja, Map.of()).write(messages, true, Map.of()));
    }

    @ParameterizedTest
    @ValueSource(strings = {"{}", "[5]", "[{}]", "[{\"name\":\"default\"}]"})
    void aTemplateThatIsNoTextIsNamed(String template, @TempDir Path directory) throws IOException {
        Path file = directory.resolve("tokenizer_config.json");
        Files.writeString(file, "{\"chat_template\":" + template + "}");
        IOException e = assertThrows(IOException.class, () -> ChatTemplate.of(directory));
        assertTrue(e.getMessage().startsWith(file + ": chat_template must be"), e::getMessage);
    }
}
