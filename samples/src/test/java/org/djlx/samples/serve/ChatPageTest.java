// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.serve;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import org.djlx.fusedops.llm.api.TextApi;
import org.djlx.fusedops.llm.text.ChatTemplate;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** The page to chat with, in a browser. */
@Timeout(90)
class ChatPageTest {

    private static final String MESSAGES =
            "[...document.querySelectorAll('.message')].map(m => m.className + '=' +"
                    + " m.textContent).join('|')";

    @TempDir private Path profile;
    private FakeGenerator generator;
    private GenerationServer server;
    private Browser browser;

    @BeforeEach
    void start() throws IOException, InterruptedException {
        Optional<Path> program = Browser.find();
        assumeTrue(program.isPresent(), "there is no Chromium");
        generator = new FakeGenerator();
        Duration patience = Duration.ofSeconds(60);
        server =
                new GenerationServer(
                        new TextApi("tiny", generator, ChatTemplate.PLAIN),
                        generator,
                        new ServerOptions(
                                "127.0.0.1",
                                0,
                                "t0ken",
                                List.of(),
                                10_000,
                                10_000,
                                20,
                                patience,
                                patience,
                                Duration.ZERO));
        browser = new Browser(program.get(), profile);
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

    @Test
    void chats() throws Exception {
        browser.open("http://127.0.0.1:" + server.port() + "/");
        // The token is asked for, and then the model's name is there.
        browser.await("document.getElementById('status')?.textContent.includes('Bearer')");
        setValue("token", "t0ken");
        browser.await("document.title == 'tiny'");

        setValue("most", "12");
        browser.evaluate("document.getElementById('input').focus()");
        browser.type("Hello <b>you</b>");
        browser.pressEnter();
        browser.await("document.getElementById('status').textContent.startsWith('12 tokens in')");
        // ChatML's prompt ends with "assistant" and a new line.
        assertEquals(
                "message user=Hello <b>you</b>|message assistant=assistant\nas",
                browser.evaluate(MESSAGES));
        browser.photograph(Path.of("target", "chat-page.png"));

        // What was said goes with the next message; this one hangs until it is stopped.
        browser.type("HANG");
        browser.click("send");
        browser.await("document.querySelectorAll('.assistant')[1]?.textContent.length == 1");
        browser.click("stop");
        generator.awaitCancelled(1);
        browser.await("document.getElementById('stop').hidden");
        assertEquals("", browser.evaluate("document.getElementById('status').textContent"));

        // A failure is shown, and the chat goes on.
        browser.click("clear");
        assertEquals("", browser.evaluate(MESSAGES));
        browser.type("FAIL");
        browser.pressEnter();
        browser.await(
                "document.querySelector('.error')?.textContent.includes('rank 1 has failed')");
        browser.click("clear");
        setValue("most", "0");
        browser.type("again");
        browser.pressEnter();
        browser.await("document.querySelector('.error')?.textContent.includes('max_tokens')");
        assertEquals("again", browser.evaluate("document.getElementById('input').value"));
        setValue("most", "3");
        browser.pressEnter();
        browser.await("document.getElementById('status').textContent.startsWith('3 tokens in')");
        assertTrue(
                browser.evaluate(MESSAGES).endsWith("|message assistant=ass"),
                browser.evaluate(MESSAGES));
    }
}
