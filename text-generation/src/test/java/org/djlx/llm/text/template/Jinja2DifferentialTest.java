// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text.template;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import com.google.gson.Gson;
import com.google.gson.JsonPrimitive;
import com.google.gson.stream.JsonReader;
import java.io.IOException;
import java.io.StringReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/**
 * Beside Jinja2 itself: Debian's python3-jinja2, which {@code ci/setup.sh} installs. {@code
 * -Dtest.templates=N -Dtest.seed=N} compares more templates, or others.
 */
@Timeout(value = 20, unit = TimeUnit.MINUTES)
class Jinja2DifferentialTest {

    private static final Gson GSON = TemplateTest.GSON;

    /** Texts with an address, and a type that we print as a plain text. */
    private static final Pattern NOT_COMPARED =
            Pattern.compile(
                    "(?si).*( at 0x|<generator|<class|<function|<bound|_?iterator|iter"
                            + " object|Markup\\().*");

    /** What we refuse by name, and errors in what Jinja2's optimizer computes by other rules. */
    private static final Pattern REFUSED =
            Pattern.compile(
                    "(?s).*([^'] (is|are) not supported|takes at most|has no slices"
                            + "|items needs a dictionary).*");

    private static final String PACKAGE = "@huggingface/ollama-utils@0.0.18";

    @TempDir private Path folder;

    private record Case(String template, String data) {}

    private record Answer(String text, String why) {}

    @BeforeEach
    void requireJinja2() throws Exception {
        assumeTrue(
                run("python3", "-c", "import jinja2; assert jinja2.__version__ >= '3.1.5'") == 0,
                "Jinja2 3.1.5 or newer is not installed: Debian's package is python3-jinja2");
    }

    private int run(String... command) throws IOException, InterruptedException {
        try {
            Process process =
                    new ProcessBuilder(command)
                            .redirectErrorStream(true)
                            .redirectOutput(folder.resolve("log").toFile())
                            .start();
            return process.waitFor();
        } catch (IOException e) { // There is no such program.
            return -1;
        }
    }

    /** Renders with Jinja2. */
    private List<Answer> answers(List<Case> cases) throws Exception {
        Path input = folder.resolve("input");
        Path output = folder.resolve("output");
        List<String> lines = new ArrayList<>();
        for (Case each : cases) {
            lines.add(
                    "{\"template\": %s, \"data\": %s}"
                            .formatted(GSON.toJson(each.template), each.data));
        }
        Files.write(input, lines);
        Path oracle = folder.resolve("oracle.py");
        try (var source =
                Jinja2DifferentialTest.class.getResourceAsStream("/templates/oracle.py")) {
            Files.write(oracle, source.readAllBytes());
        }
        int status =
                run(
                        "python3",
                        "-W",
                        "ignore",
                        oracle.toString(),
                        input.toString(),
                        output.toString());
        assertEquals(0, status, () -> "the oracle fails, log in " + folder);
        List<Answer> answers = new ArrayList<>();
        for (String line : Files.readAllLines(output)) {
            answers.add(GSON.fromJson(line, Answer.class));
        }
        assertEquals(cases.size(), answers.size());
        return answers;
    }

    /** Compares all cases; returns how many have a text. */
    @SuppressWarnings("unchecked") // The data is a JSON object.
    private int compare(List<Case> cases) throws Exception {
        List<Answer> answers = answers(cases);
        List<String> wrong = new ArrayList<>();
        int texts = 0;
        for (int i = 0; i < cases.size(); i++) {
            Case each = cases.get(i);
            Answer answer = answers.get(i);
            String text = null;
            String why = null;
            try {
                text = Template.parse(each.template).render(GSON.fromJson(each.data, Map.class));
            } catch (IllegalArgumentException e) {
                why = e.getMessage();
            }
            boolean compared =
                    (answer.text == null || !NOT_COMPARED.matcher(answer.text).matches())
                            && (why == null
                                    || answer.text == null
                                    || !REFUSED.matcher(why).matches());
            texts += text != null && compared ? 1 : 0;
            if (compared && !java.util.Objects.equals(text, answer.text)) {
                wrong.add(
                        "%s%n with %s%n ours   %s%n Jinja2 %s%n"
                                .formatted(
                                        each.template,
                                        each.data,
                                        text == null ? why : GSON.toJson(text),
                                        answer.text == null
                                                ? answer.why
                                                : GSON.toJson(answer.text)));
            }
        }
        assertEquals(
                "",
                String.join("\n", wrong.subList(0, Math.min(10, wrong.size()))),
                wrong.size() + " differ");
        return texts;
    }

    @Test
    void randomTemplatesAreThoseOfJinja2() throws Exception {
        int count = Integer.getInteger("test.templates", 1000);
        RandomTemplates random = new RandomTemplates(Long.getLong("test.seed", 1));
        List<Case> cases = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            String template = "{% set ns = namespace(a=1, b='B') %}" + random.next();
            cases.add(new Case(template, random.data()));
        }
        assertTrue(compare(cases) > count / 3, "most templates are refused");
    }

    /** The templates of models, from an npm package. */
    @Test
    @Tag("slow")
    void templatesOfModelsAreThoseOfJinja2() throws Exception {
        Path installed = Path.of("target", "templates");
        Files.createDirectories(installed);
        int status =
                run(
                        "npm",
                        "install",
                        "--prefix",
                        installed.toString(),
                        "--no-audit",
                        "--no-fund",
                        "--ignore-scripts",
                        "--prefer-offline",
                        "--silent",
                        PACKAGE);
        assumeTrue(
                status == 0,
                "npm cannot install " + PACKAGE + ": it is not installed, or has no network");
        Path source =
                installed.resolve(
                        "node_modules/@huggingface/ollama-utils/src/chat-template-automap.ts");
        Matcher literal =
                Pattern.compile("gguf:\\s*(\"(?:[^\"\\\\]|\\\\.)*+\"|'(?:[^'\\\\]|\\\\.)*+')")
                        .matcher(Files.readString(source));
        List<Case> cases = new ArrayList<>();
        int templates = 0;
        while (literal.find()) {
            JsonReader reader = new JsonReader(new StringReader(literal.group(1)));
            reader.setStrictness(com.google.gson.Strictness.LENIENT);
            String template = reader.nextString();
            templates++;
            for (String data : chats()) {
                cases.add(new Case(template, data));
            }
        }
        assertTrue(templates >= 90, templates + " templates are found");
        assertTrue(compare(cases) > cases.size() / 2, "most chats are refused");
    }

    private static String message(String role, String text) {
        return "{\"role\": \"%s\", \"content\": %s}".formatted(role, new JsonPrimitive(text));
    }

    private static List<String> chats() {
        String user = message("user", "What is 2 + 2?");
        String odd = message("user", "  false é👍 'a' \"b\"\n\n{{ x }} <b>&amp;</b>\u00a0");
        String system = message("system", "Be brief. ");
        String answer = message("assistant", "<think>\nno\n</think>\n\n4 ");
        String call =
                "{\"role\": \"assistant\", \"content\": %s, \"tool_calls\": [{\"id\":"
                    + " \"abcdefghi\", \"type\": \"function\", \"function\": {\"name\": \"sum\","
                    + " \"arguments\": {\"x\": 12345678.5, \"eps\": 1e-07, \"s\": \"é\", \"n\":"
                    + " null, \"l\": [1, true]}}}]}";
        String result =
                "{\"role\": \"tool\", \"name\": \"sum\", \"tool_call_id\": \"abcdefghi\","
                        + " \"content\": \"{\\\"sum\\\": 4}\"}";
        String tools =
                "[{\"type\": \"function\", \"function\": {\"name\": \"sum\", \"description\":"
                    + " \"Adds\", \"parameters\": {\"type\": \"object\", \"properties\": {\"x\":"
                    + " {\"type\": \"number\", \"description\": \"d\"}, \"s\": {\"type\":"
                    + " [\"string\", \"null\"], \"enum\": [\"a\"]}}, \"required\": [\"x\"]}}}]";
        List<String> messages =
                List.of(
                        user,
                        odd,
                        system + ", " + user,
                        system + ", " + user + ", " + answer + ", " + odd,
                        user + ", " + message("assistant", "") + ", " + message("user", "false"),
                        user + ", " + user,
                        user + ", " + call.formatted("null") + ", " + result,
                        system
                                + ", "
                                + odd
                                + ", "
                                + call.formatted("\"\"")
                                + ", "
                                + result
                                + ", "
                                + answer
                                + ", "
                                + user);
        List<String> chats = new ArrayList<>();
        for (int i = 0; i < messages.size(); i++) {
            chats.add(
                    "{\"messages\": [%s], \"tools\": %s, \"documents\": null, \"add_generation_prompt\": %b, \"bos_token\": \"<s>\", \"eos_token\": \"</s>\"%s}"
                            .formatted(
                                    messages.get(i),
                                    i >= 6 || i == 2 ? tools : "null",
                                    i % 2 == 0,
                                    i == 3 ? ", \"enable_thinking\": false" : ""));
        }
        return chats;
    }
}
