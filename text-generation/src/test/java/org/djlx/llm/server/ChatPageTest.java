// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import org.djlx.llm.GenerationRequest;
import org.djlx.llm.TextGenerator;
import org.djlx.llm.engine.TextEngine;
import org.djlx.llm.text.ChatTemplate;
import org.djlx.llm.text.ReasoningFormat;
import org.djlx.llm.text.ToolFormat;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** The page to chat with, in a browser. */
@Timeout(300)
class ChatPageTest {

    private static final String MESSAGES =
            "[...document.querySelectorAll('.message')].map(m => m.classList[1] + '=' +"
                    + " (m.querySelector('.text') ?? m).textContent.trimEnd()).join('|')";
    private static final String CHATS =
            "[...document.querySelectorAll('#chats .name')].map(o => o.textContent).join('|')";
    private static final String STATS =
            "([...document.querySelectorAll('.stats')].at(-1)?.textContent ?? '')";
    private static final String NOTICE = "(document.getElementById('notice')?.textContent ?? '')";
    private static final String INPUT = "document.getElementById('input').value";
    private static final String IDLE = "document.getElementById('stop').hidden";
    private static final String MARKDOWN =
            """
            Some **bold** text, and a list:

            * one
            * two

            ```java
            int a = 1 < 2 ? 3 : 4; // a line that is much longer than a telephone is wide, and wider
            ```

            <script>window.broken = 1</script><img src=x onerror="window.broken = 2">
            <b style="position:fixed" onclick="window.broken = 3">shown</b> [link](javascript:broken)

            | a | b |
            |---|---|
            | 1 | 2 |

            """;

    @TempDir private Path profile;
    private TextGenerator generator;
    private GenerationServer server;
    private Browser browser;

    @BeforeEach
    void find() throws IOException, InterruptedException {
        Optional<Path> program = Browser.find();
        assumeTrue(program.isPresent(), "there is no Chromium");
        browser = new Browser(program.get(), profile.resolve("profile"));
    }

    /** Serves a generator, and opens the page. */
    private <T extends TextGenerator> T open(T served, String token) throws Exception {
        open(served, token, new TextApi("tiny", served, ChatTemplate.PLAIN));
        return served;
    }

    private void open(TextGenerator served, String token, TextApi api) throws Exception {
        generator = served;
        Duration patience = Duration.ofSeconds(60);
        server =
                new GenerationServer(
                        api,
                        generator,
                        new ServerOptions(
                                "127.0.0.1",
                                0,
                                token,
                                List.of(),
                                100_000,
                                100_000,
                                20,
                                patience,
                                patience,
                                Duration.ZERO));
        browser.open("http://127.0.0.1:" + server.port() + "/");
        browser.await(token == null ? "document.title == 'tiny'" : NOTICE + ".includes('Bearer')");
    }

    @AfterEach
    void stop() {
        if (browser != null) {
            browser.close();
        }
        if (server != null) {
            server.close();
            generator.close();
        }
    }

    private void setValue(String id, String value) {
        browser.evaluate(
                String.format(
                        "(() => { const e = document.getElementById('%s'); e.value = '%s';"
                                + " e.dispatchEvent(new Event('change')); })()",
                        id, value));
    }

    private void send(String text) throws InterruptedException {
        browser.evaluate("document.getElementById('input').focus()");
        browser.type(text);
        browser.pressEnter();
    }

    /** Sends a message, and waits for the end of the answer. */
    private void chat(String text) throws InterruptedException {
        send(text);
        browser.await(INPUT + " === '' && " + IDLE);
    }

    private void clickButton(String name) {
        browser.evaluate(
                "[...document.querySelectorAll('button')].filter(b => b.textContent === '"
                        + name
                        + "').at(-1).click()");
    }

    @Test
    void chats() throws Exception {
        FakeGenerator fake = open(new FakeGenerator(), "t0ken");
        // The token is asked for, where it is to be entered, and then the model's name is there.
        assertTrue(browser.evaluate(NOTICE).endsWith("Enter the server's token under Settings."));
        browser.await("document.getElementById('settings').matches(':popover-open')");
        browser.await("document.activeElement.id == 'token'");
        assertTrue(
                browser.evaluate("document.getElementById('hint').textContent").contains("Enter"));
        setValue("token", "t0ken");
        browser.await("document.title == 'tiny'");
        assertEquals("", browser.evaluate(NOTICE));
        browser.await("!document.querySelector(':popover-open')");

        setValue("most", "12");
        chat("Hello <b>you</b>");
        // The plain template's prompt ends with "assistant:".
        assertEquals("user=Hello <b>you</b>|assistant=assistant:as", browser.evaluate(MESSAGES));
        assertTrue(browser.evaluate(STATS).matches("12 tokens, [0-9.]+ tokens/s, first after .*"));
        assertEquals(
                "Cut after 12 tokens",
                browser.evaluate("document.querySelector('.mark').textContent"));

        // What was said goes with the next message; this one hangs until it is stopped.
        send("HANG");
        browser.await(
                "document.querySelectorAll('.assistant .text')[1]?.textContent.trim().length == 1");
        browser.click("#stop");
        fake.awaitCancelled(1);
        browser.await(IDLE);
        browser.await("document.querySelectorAll('.mark')[1]?.textContent == 'Stopped'");
        assertEquals("", browser.evaluate(NOTICE));

        // A failure after the first text marks the answer, and says what to do.
        browser.click("#new");
        assertEquals("", browser.evaluate(MESSAGES));
        chat("FAIL");
        assertTrue(
                browser.evaluate(NOTICE)
                        .matches("The answer has failed: .*log says why. Send again."));
        assertEquals("user=FAIL|assistant=as", browser.evaluate(MESSAGES));
        assertEquals("Broken off", browser.evaluate("document.querySelector('.mark').textContent"));

        // A refused message goes back to the input, and leaves nothing in the chat.
        browser.click("#new");
        setValue("temperature", "-1");
        send("again");
        browser.await(NOTICE + ".includes('temperature')");
        assertEquals("", browser.evaluate(MESSAGES));
        assertEquals("again", browser.evaluate(INPUT));
        setValue("temperature", "0");
        setValue("most", "3");
        browser.pressEnter();
        browser.await(STATS + ".startsWith('3 tokens')");
        assertEquals("user=again|assistant=ass", browser.evaluate(MESSAGES));
        assertEquals("", browser.evaluate(NOTICE));

        // So does one to a server that has gone.
        server.close();
        send("anyone?");
        browser.await(NOTICE + ".includes('The server cannot be reached. Check that it runs')");
        assertEquals("user=again|assistant=ass", browser.evaluate(MESSAGES));
        assertEquals("anyone?", browser.evaluate(INPUT));
    }

    /** Markdown is shown, and nothing of it runs. */
    @Test
    void showsMarkdownSafely() throws Exception {
        open(new FakeGenerator(5000, prompt -> MARKDOWN), null);
        chat("Markdown, please");
        String text = "document.querySelector('.assistant .text')";
        for (String selector : List.of("strong", "li + li", "pre code", "td", "b")) {
            browser.await(text + ".querySelector('" + selector + "')");
        }
        browser.await("!" + text + ".querySelector('script, img, [style], [onclick]')");
        browser.await("!" + text + ".innerHTML.includes('javascript:')");
        browser.await("window.broken === undefined");
        browser.evaluate(
                "navigator.clipboard.writeText = async copied => { window.copied = copied; }");
        browser.click("pre button");
        browser.await("window.copied?.startsWith('int a = 1 < 2') && copied.endsWith('wider\\n')");
        browser.click(".assistant .actions button");
        browser.await("window.copied.startsWith('Some **bold** text')");
    }

    @Test
    void editsRegeneratesAndKeepsChats() throws Exception {
        open(new FakeGenerator(), null);
        setValue("most", "5");
        setValue("system", "Be brief.");
        chat("one");
        chat("two");
        // The template ends with the role, so that all answers are equal.
        assertEquals(
                "user=one|assistant=assis|user=two|assistant=assis", browser.evaluate(MESSAGES));
        setValue("most", "7");
        clickButton("Regenerate");
        browser.await(STATS + ".startsWith('7 tokens')");
        assertEquals(
                "user=one|assistant=assis|user=two|assistant=assista", browser.evaluate(MESSAGES));
        // A failure to regenerate keeps the answer there was.
        setValue("temperature", "-1");
        clickButton("Regenerate");
        browser.await(NOTICE + ".includes('temperature')");
        assertTrue(browser.evaluate(MESSAGES).endsWith("|assistant=assista"));
        setValue("temperature", "");

        browser.click(".user .actions button");
        assertEquals("one", browser.evaluate(INPUT));
        assertTrue(browser.evaluate(NOTICE).contains("replaces this message and what follows"));
        clickButton("Cancel");
        assertEquals("", browser.evaluate(INPUT));
        browser.click(".user .actions button");
        chat(" more");
        assertEquals("user=one more|assistant=assista", browser.evaluate(MESSAGES));

        // Chats and settings survive a reload; tokens are not stored with them.
        browser.click("#new");
        chat("another");
        browser.open("http://127.0.0.1:" + server.port() + "/?");
        browser.await("document.title == 'tiny' && document.querySelectorAll('.message').length");
        assertEquals("user=another|assistant=assista", browser.evaluate(MESSAGES));
        assertEquals("Be brief.", browser.evaluate("document.getElementById('system').value"));
        assertEquals("another|one more", browser.evaluate(CHATS));
        search("ONE");
        assertEquals("one more", browser.evaluate(CHATS));
        search("nowhere");
        browser.await("document.getElementById('chats').textContent == 'No chat has this text.'");
        search("");
        String delete = "#chats li:has([aria-current]) .delete";
        browser.click(delete);
        assertEquals("user=one more|assistant=assista", browser.evaluate(MESSAGES));
        assertEquals("one more", browser.evaluate(CHATS));
        clickButton("Undo");
        assertEquals("another|one more", browser.evaluate(CHATS));
        assertEquals("user=another|assistant=assista", browser.evaluate(MESSAGES));
        browser.click("#chats li:last-child .open");
        assertEquals("user=one more|assistant=assista", browser.evaluate(MESSAGES));

        // The input grows with its text.
        int before = height();
        browser.type("a\nb\nc\nd");
        assertTrue(height() > before + 40, before + " and " + height());
    }

    private void search(String text) {
        browser.evaluate(
                "document.getElementById('search').value = '"
                        + text
                        + "'; document.getElementById('search').dispatchEvent(new Event('input'))");
    }

    private int height() {
        String height =
                "Math.round(document.getElementById('input').getBoundingClientRect().height)";
        return Integer.parseInt(browser.evaluate(height));
    }

    /** Without a longest answer, an answer takes what is left of the context. */
    @Test
    void staysWithinTheContext() throws Exception {
        open(new FakeGenerator(100, null), null);
        chat("Hello"); // "user: Hello\nassistant: " or the like is at most half of 100 tokens.
        assertEquals(
                "Cut: the context is full",
                browser.evaluate("document.querySelector('.mark').textContent"));
        send("more");
        browser.await(NOTICE + ".startsWith('The chat is longer than the 100 tokens')");
        assertEquals("more", browser.evaluate(INPUT));
        assertTrue(browser.evaluate(MESSAGES).startsWith("user=Hello|assistant=assistant"));
        browser.resize(375, 667, false);
        browser.photograph(Path.of("target", "chat-page-375-too-long.png"));
        browser.click("[popovertarget=settings]");
        browser.photograph(Path.of("target", "chat-page-375-settings.png"));
        clickButton("Close");
        browser.await("!document.querySelector(':popover-open')");
        setValue("most", "500");
        clickButton("Drop the oldest turns");
        browser.await(INPUT + " === '' && " + IDLE);
        assertTrue(browser.evaluate(MESSAGES).startsWith("user=more|assistant=assistant"));
        assertEquals("", browser.evaluate(INPUT) + browser.evaluate(NOTICE));
        clickButton("New chat");
        send("x".repeat(101));
        browser.await(NOTICE + ".startsWith('This message is too long for the 100 tokens')");
        assertEquals("", browser.evaluate(MESSAGES));
    }

    private static String answer(GenerationRequest request) {
        int[] tokens = request.promptTokens().orElseThrow();
        return new String(tokens, 0, tokens.length).contains("\ntool: ")
                ? "It shines."
                : "<think>\nIt is dark.\nTurn it on.\n</think>\n\n<tool_call>\n"
                        + "{\"name\": \"turn\", \"arguments\": {\"on\": true}}\n</tool_call>";
    }

    @Test
    void foldsThinkingAndShowsCalls() throws Exception {
        FakeGenerator fake = new FakeGenerator(5000, ChatPageTest::answer);
        ReasoningFormat think = ReasoningFormat.THINK;
        open(fake, null, new TextApi("tiny", fake, ChatTemplate.PLAIN, ToolFormat.HERMES, think));
        setValue("tools", "[");
        send("Light, please");
        browser.await(NOTICE + ".startsWith('The tools under Settings are not JSON: ')");
        setValue("tools", "[{\"type\": \"function\", \"function\": {\"name\": \"turn\"}}]");
        browser.pressEnter();
        browser.await("document.querySelector('form.fold')");
        assertEquals("", browser.evaluate(NOTICE));
        String thinking = "document.querySelector('.thinking')";
        browser.await("!" + thinking + ".open");
        assertTrue(
                browser.evaluate(thinking + ".firstChild.textContent")
                        .matches("Thought for [0-9.]+ s"));
        assertEquals(
                "It is dark.\nTurn it on.", browser.evaluate(thinking + ".lastChild.textContent"));
        browser.click(".thinking summary");
        browser.await(thinking + ".open");
        assertEquals(
                "Calls turn{\"on\": true}",
                browser.evaluate("document.querySelector('.call').textContent"));
        browser.resize(1280, 800, false);
        photograph(1280, false, "call");
        browser.resize(375, 667, true);
        photograph(375, true, "call");
        browser.evaluate("document.querySelector('form.fold textarea').focus()");
        browser.type("The lamp is on.");
        browser.click("form.fold button");
        browser.await(IDLE + " && document.querySelectorAll('.message').length == 4");
        assertTrue(
                browser.evaluate(MESSAGES)
                        .endsWith("|tool=Result of turnThe lamp is on.|assistant=It shines."));
        browser.await(
                "/^Context: [0-9]+ of 5,000 tokens$/"
                        + ".test(document.getElementById('used-text').textContent)");
        // The chat is as before when it is opened again, from the list that the button shows.
        browser.click("[popovertarget=side]");
        photograph(375, true, "chats");
        browser.click("#side #new");
        assertEquals("", browser.evaluate(MESSAGES));
        browser.click("[popovertarget=side]");
        browser.click("#chats li:last-child .open");
        browser.await("!document.querySelector(':popover-open')");
        browser.await("document.querySelectorAll('.message').length == 4");
        browser.await("document.querySelector('.call') && !document.querySelector('form.fold')");
    }

    private void drop(String name, String contents) {
        browser.evaluate(
                String.format(
                        "(() => { const data = new DataTransfer();"
                                + " data.items.add(new File([%s], '%s'));"
                                + " document.body.dispatchEvent(new DragEvent('drop',"
                                + " {dataTransfer: data, bubbles: true, cancelable: true})); })()",
                        contents, name));
    }

    @Test
    void takesTheTextOfFiles() throws Exception {
        open(new FakeGenerator(), null);
        browser.type("See");
        drop("a.txt", "'one\\n```\\ntwo'");
        browser.await(INPUT + " == 'See\\na.txt:\\n````\\none\\n```\\ntwo\\n````\\n'");
        browser.await("document.getElementById('used-text').textContent.startsWith('Context: ')");
        drop("b.png", "'a\\0b'");
        browser.await(NOTICE + " == 'b.png is not a text: the model reads text only.'");
        drop("c.txt", "'a'.repeat(1 << 21)");
        browser.await(NOTICE + " == 'c.txt is larger than 1 MB. Drop a part of it.'");
        browser.await(INPUT + ".endsWith('two\\n````\\n')");
    }

    /** A model as that of the README: 256 tokens, no chat template, and the page as it opens. */
    @Test
    void chatsWithAModelOfAShortContext() throws Exception {
        Path tiny = profile.resolve("model");
        String[] command = {"serve-model", tiny.toString(), "--max-length", "256", "--layers", "1"};
        assertEquals(0, Commands.commandLine().execute(command));
        open(TextEngine.builder().setDirectory(tiny).build(), null);
        setValue("seed", "1");
        chat("Once upon a time");
        assertEquals("", browser.evaluate(NOTICE));
        assertTrue(browser.evaluate(STATS).matches("\\d+ tokens, .*"));
    }

    /** Ten turns of long answers are read on a desktop and on a telephone, by day and by night. */
    @ParameterizedTest
    @CsvSource({"1280, 800, false", "1280, 800, true", "375, 667, false", "375, 667, true"})
    void showsTenTurnsOfLongAnswers(int width, int height, boolean dark) throws Exception {
        String answer = MARKDOWN.repeat(3) + "A word of a paragraph. ".repeat(30);
        open(new FakeGenerator(100_000, prompt -> answer), null);
        browser.resize(width, height, dark);
        for (int turn = 1; turn <= 10; turn++) {
            chat("Question " + turn + ": " + "why is this so? ".repeat(turn));
        }
        String main = "document.querySelector('main')";
        browser.await("document.querySelectorAll('.message').length == 20");
        // No message is squeezed, nothing is wider than the page, and its end is in sight.
        browser.await(
                "[...document.querySelectorAll('.assistant .text')].every(t => t.clientHeight > 500"
                        + " && t.scrollHeight <= t.clientHeight + 1)");
        browser.await("document.scrollingElement.scrollWidth <= innerWidth");
        browser.await(main + ".scrollWidth <= " + main + ".clientWidth");
        String distance =
                String.format("%1$s.scrollHeight - %1$s.scrollTop - %1$s.clientHeight", main);
        browser.await(distance + " < 2");
        browser.await(
                "document.getElementById('form').getBoundingClientRect().bottom <= innerHeight");
        browser.evaluate("document.querySelector('[popovertarget=settings]').click()");
        photograph(width, dark, "settings");
        clickButton("Close");
        photograph(width, dark, "end");
        browser.evaluate("document.querySelectorAll('.assistant')[8].scrollIntoView()");
        photograph(width, dark, "middle");

        // The reader scrolls up while an answer comes: the page stays where it is.
        send("once more");
        browser.await("!" + IDLE + " && " + distance + " < 2");
        browser.evaluate(main + ".scrollTop = 100");
        browser.await(IDLE + " && document.querySelectorAll('.message').length == 22");
        assertEquals("100", browser.evaluate(main + ".scrollTop"));
    }

    private void photograph(int width, boolean dark, String part) throws IOException {
        String name = String.format("chat-page-%d-%s-%s.png", width, dark ? "dark" : "light", part);
        browser.photograph(Path.of("target", name));
    }
}
