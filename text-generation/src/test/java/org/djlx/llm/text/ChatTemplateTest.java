// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.djlx.llm.text.ChatTemplate.Message;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
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
        assertTrue(broken.getMessage().contains("cannot be read"), broken.getMessage());
        for (String file : List.of("include", "import", "extends")) {
            assertThrows(
                    IllegalArgumentException.class,
                    () -> render("{% " + file + " '/etc/passwd' %}", Map.of()),
                    file);
        }
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

    private static String writeTools(ChatTemplate template) {
        Map<String, Object> tools =
                Map.of("tools", List.of(Map.of("function", Map.of("name", "f"))));
        return template.write(List.of(new Message("user", "x")), true, tools);
    }

    /**
     * As transformers: tool_use if there are tools, else default; files replace the configuration.
     */
    @Test
    void templatesAreChosenByName(@TempDir Path folder) throws IOException {
        String config =
                """
                {"chat_template": [{"name": "tool_use", "template": "use {{ tools|length }}"},
                   {"name": "rag", "template": "rag"}%s]}
                """;
        Path file = folder.resolve("tokenizer_config.json");
        String other = ", {\"name\": \"default\", \"template\": \"default {{ tools }}\"}";
        Files.writeString(file, config.formatted(other));
        assertEquals("default None", write(ChatTemplate.of(folder)));
        assertEquals("use 1", writeTools(ChatTemplate.of(folder)));
        assertEquals(
                "use 0",
                ChatTemplate.of(folder)
                        .write(
                                List.of(new Message("user", "x")),
                                true,
                                Map.of("tools", List.of())));
        Files.writeString(file, "{\"chat_template\": {\"default\": \"by name\"}}");
        assertEquals("by name", write(ChatTemplate.of(folder)));
        Files.writeString(file, config.formatted(""));
        assertEquals("use 1", writeTools(ChatTemplate.of(folder)));
        ChatTemplate without = ChatTemplate.of(folder);
        IllegalArgumentException e =
                assertThrows(IllegalArgumentException.class, () -> write(without));
        assertTrue(e.getMessage().contains("no chat template named default"), e::getMessage);
        Path others = Files.createDirectory(folder.resolve("additional_chat_templates"));
        Files.writeString(others.resolve("tool_use.jinja"), "use of a file {{ tools is defined }}");
        Files.writeString(folder.resolve("chat_template.jinja"), "file");
        assertEquals("file", write(ChatTemplate.of(folder)));
        assertEquals("use of a file True", writeTools(ChatTemplate.of(folder)));
        Files.writeString(others.resolve("default.jinja"), "another");
        assertEquals("another", write(ChatTemplate.of(folder)));
    }

    @Test
    void toolsThatATemplateDoesNotReadAreRefused() {
        ChatTemplate blind = new ChatTemplate("{{ messages[0].content }}tools", Map.of());
        assertEquals("xtools", write(blind));
        IllegalArgumentException e =
                assertThrows(IllegalArgumentException.class, () -> writeTools(blind));
        assertTrue(e.getMessage().contains("does not read them"), e::getMessage);
        assertEquals("tools: f\nuser: x\nassistant:", writeTools(ChatTemplate.PLAIN));
    }

    @Test
    void truthValuesOfConfigurationsAreNoTokens(@TempDir Path folder) throws IOException {
        Files.writeString(
                folder.resolve("tokenizer_config.json"),
                "{\"add_bos_token\": true, \"chat_template\": \"{{ add_bos_token is defined }}\"}");
        assertEquals("False", write(ChatTemplate.of(folder)));
    }

    /** A thread of DJL Serving may have a context class loader that sees none of our jars. */
    @Test
    void noClassIsLookedUpByTheThreadsLoader() {
        Thread thread = Thread.currentThread();
        ClassLoader own = thread.getContextClassLoader();
        thread.setContextClassLoader(ClassLoader.getPlatformClassLoader());
        try {
            String jinja = "{{ messages|tojson }}{{ strftime_now('%Y')|length }}{{ '%d' % 3 }}";
            assertEquals(
                    "[{\"role\": \"user\", \"content\": \"x\"}]43",
                    write(new ChatTemplate(jinja, Map.of())));
        } finally {
            thread.setContextClassLoader(own);
        }
    }

    /** Takes {@code <end>} and the tokens of Qwen 3 for single tokens; notes what it encodes. */
    private static final class Tokenizer implements TextTokenizer {

        private static final List<String> ADDED =
                List.of("<end>", "<think>", "<tool_call>", "<mine>", "<table>", "\n\n");
        private final List<String> encoded = new ArrayList<>();

        @Override
        public int[] encode(String text, boolean specialTokens) {
            encoded.add(text);
            String tokens = text;
            for (int i = 0; i < ADDED.size(); i++) {
                tokens = tokens.replace(ADDED.get(i), String.valueOf((char) (i + 1)));
            }
            return tokens.codePoints().toArray();
        }

        @Override
        public String decode(int[] tokens) {
            StringBuilder text = new StringBuilder();
            for (int token : tokens) {
                text.append(token <= ADDED.size() ? "{" + token + "}" : Character.toString(token));
            }
            return text.toString();
        }

        @Override
        public Set<String> specialTokens() {
            return Set.of("<end>");
        }

        @Override
        public Set<String> addedTokens() {
            return Set.copyOf(ADDED);
        }

        @Override
        public void close() {}

        private String read(ChatTemplate template, Map<String, Object> options, Message... chat) {
            return decode(template.encode(List.of(chat), true, options, this, 1000));
        }
    }

    private static final ChatTemplate ENDING =
            new ChatTemplate(
                    "{% for m in messages %}{{ m.content|trim }}<end>{% endfor %}{{ x }}",
                    Map.of());

    /** A client who writes a control token cannot end the message, or pretend to be a tool. */
    @Test
    void controlTokensOfClientsStayText() {
        Tokenizer tokenizer = new Tokenizer();
        Map<String, Object> options = Map.of("x", List.of(Map.of("<think>", "c<end>")));
        assertEquals(
                "a<end>b <tool_call>{1}[{'<think>': 'c<end>'}]",
                tokenizer.read(ENDING, options, new Message("user", " a<end>b <tool_call>")));
        assertEquals(
                List.of("a<", "end>b <", "tool_call><end>[{'<", "think>': 'c<", "end>'}]"),
                tokenizer.encoded);
        // The end of a text and the beginning of the next do not make a token either.
        ChatTemplate joining =
                new ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", Map.of());
        Message first = new Message("user", "<en");
        assertEquals("<end>", tokenizer.read(joining, Map.of(), first, new Message("user", "d>")));
        // Tokens that are neither special nor the template's are words as others.
        assertEquals(
                "{4} {5}{6}{1}",
                tokenizer
                        .read(ENDING, Map.of("x", ""), new Message("tool", "<mine> <table>\n\n."))
                        .replace(".", ""));
        ChatTemplate mine = new ChatTemplate("<mine>{{ messages[0].content }}", Map.of());
        assertEquals("{4}<mine>", tokenizer.read(mine, Map.of(), new Message("user", "<mine>")));
    }

    /** What the model wrote is read as it was written, except for tokens that end a message. */
    @Test
    void controlTokensOfAnswersAreTokens() {
        assertEquals(
                "{2}no<end>{1}",
                new Tokenizer()
                        .read(ENDING, Map.of("x", ""), new Message("assistant", "<think>no<end>")));
    }

    @Test
    void standInsDoNotChangeOtherTexts() {
        Tokenizer tokenizer = new Tokenizer();
        String odd = "\uE000 👍 <thin <";
        assertEquals(
                odd + "{1}", tokenizer.read(ENDING, Map.of("x", ""), new Message("user", odd)));
        assertEquals(
                "\uFFFD{1}",
                tokenizer.read(ENDING, Map.of("x", ""), new Message("user", "\uDC00")));
        ChatTemplate json =
                new ChatTemplate(
                        "{{ messages|tojson }}{{ messages }}{{ messages|tojson(true) }}", Map.of());
        String message = "[{\"role\": \"user\", \"content\": \"<end>\"}]";
        assertEquals(
                message + message.replace('"', '\'') + message,
                tokenizer.read(json, Map.of(), new Message("user", "<end>")));
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
