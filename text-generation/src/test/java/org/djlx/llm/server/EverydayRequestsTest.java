// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import org.djlx.llm.engine.ByteTokens;
import org.djlx.llm.engine.TextEngine;
import org.djlx.llm.text.ChatTemplate;
import org.djlx.llm.text.ToolFormat;
import org.djlx.nativeops.TestJson;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** Requests that usual clients send, with a small random model that has a token for each byte. */
@Timeout(120)
class EverydayRequestsTest {

    @TempDir private static Path directory;
    private static TextEngine generator;
    private static TextApi api;

    @BeforeAll
    static void load() throws IOException {
        ByteTokens.writeModel(directory, 3);
        generator = TextEngine.builder().setDirectory(directory).build();
        api = new TextApi("tiny", generator, ChatTemplate.PLAIN, ToolFormat.HERMES, null);
    }

    @AfterAll
    static void close() {
        generator.close();
    }

    private static byte[] utf8(String json) {
        return json.replace('\'', '"').getBytes(StandardCharsets.UTF_8);
    }

    private static String send(TextCall call) {
        TextAnswer answer = call.submit(generator);
        StringBuilder text = new StringBuilder();
        while (!answer.isComplete()) {
            answer.poll().ifPresentOrElse(text::append, Thread::onSpinWait);
        }
        return text.toString();
    }

    @Test
    void noNewTokensScoreThePrompt() {
        String prompt = "{'prompt':'Höhe','echo':true,'logprobs':1,'max_tokens':";
        String scored = send(api.completion(utf8(prompt + "0}")));
        String longer = send(api.completion(utf8(prompt + "2}")));
        assertEquals("Höhe", TestJson.at(scored, "choices.0.text").getAsString());
        assertEquals("length", TestJson.at(scored, "choices.0.finish_reason").getAsString());
        assertEquals(0, TestJson.at(scored, "usage.completion_tokens").getAsInt());
        JsonArray scores =
                TestJson.at(scored, "choices.0.logprobs.token_logprobs").getAsJsonArray();
        JsonArray more = TestJson.at(longer, "choices.0.logprobs.token_logprobs").getAsJsonArray();
        assertEquals(more.size() - 2, scores.size());
        for (int i = 0; i < scores.size(); i++) {
            assertEquals(more.get(i), scores.get(i));
        }
        String streamed = send(api.completion(utf8(prompt + "0,'stream':true}")));
        assertEquals(3, streamed.strip().split("\n\n").length, streamed); // echo, end, [DONE]
        ApiException e =
                assertThrows(
                        ApiException.class,
                        () -> api.completion(utf8("{'prompt':'x','max_tokens':0}")));
        assertTrue(e.getMessage().startsWith("'max_tokens' must be"), e.getMessage());
    }

    @Test
    void logProbabilitiesHaveTheBytesOfPartsOfCharacters() {
        String chat =
                send(
                        api.chat(
                                utf8(
                                        "{'messages':[{'role':'user','content':'x'}],'max_tokens':40,"
                                            + "'seed':1,'logprobs':true,'temperature':2}")));
        int parts = 0;
        for (JsonElement each : TestJson.at(chat, "choices.0.logprobs.content").getAsJsonArray()) {
            JsonObject token = each.getAsJsonObject();
            if (token.get("token").getAsString().contains("\uFFFD")) {
                parts++;
                assertEquals(1, token.getAsJsonArray("bytes").size());
                assertTrue(token.getAsJsonArray("bytes").get(0).getAsInt() >= 0x80);
            }
        }
        assertTrue(parts > 0, chat);
    }

    @Test
    void errorsNameTheFieldOfTheRequest() {
        ApiException e =
                assertThrows(
                        ApiException.class,
                        () -> api.completion(utf8("{'prompt':'x','max_tokens':3,'min_tokens':4}")));
        assertTrue(e.getMessage().contains("min_tokens must be from 0"), e.getMessage());
    }

    @Test
    void aSchemaThatIsNotSupportedRefusesNoOtherTool() {
        String chat =
                "{'messages':[{'role':'user','content':'x'}],'tool_choice':'required','tools':["
                        + "{'type':'function','function':{'name':'a','parameters':{'type':'object',"
                        + "'properties':{'x':{'not':{}}}}%s}},"
                        + "{'type':'function','function':{'name':'b'}}]}";
        assertTrue(api.chat(utf8(String.format(chat, ""))).requests().get(0).grammar().isPresent());
        ApiException e =
                assertThrows(
                        ApiException.class,
                        () -> api.chat(utf8(String.format(chat, ",'strict':true"))));
        assertTrue(e.getMessage().contains("the tool a"), e.getMessage());
    }

    @Test
    void invocationsTakeMessages() {
        String answer =
                send(
                        Route.INVOCATION.read(
                                api,
                                utf8(
                                        "{'messages':[{'role':'user','content':'x'}],'max_tokens':1}")));
        assertEquals("chat.completion", TestJson.at(answer, "object").getAsString());
        answer = send(Route.INVOCATION.read(api, utf8("{'inputs':'x','parameters':{}}")));
        assertTrue(answer.contains("generated_text"), answer);
    }

    @Test
    void detokenizeIsTheInverseOfTokenize() {
        JsonElement tokens = TestJson.at(api.tokenize(utf8("{'prompt':'Höhe 3'}")), "tokens");
        String text = api.detokenize(utf8("{'model':'tiny','tokens':" + tokens + "}"));
        assertEquals("Höhe 3", TestJson.at(text, "prompt").getAsString());
    }

    @Test
    void aTakenPortGetsAHint() throws IOException {
        try (ServerSocket taken = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            ServerOptions options =
                    new ServerOptions(
                            "127.0.0.1",
                            taken.getLocalPort(),
                            null,
                            List.of(),
                            1000,
                            1000,
                            1,
                            Duration.ofSeconds(1),
                            Duration.ofSeconds(1),
                            Duration.ZERO);
            IOException e =
                    assertThrows(IOException.class, () -> GenerationServer.checkAddress(options));
            assertTrue(e.getMessage().endsWith("; choose another one with --port"), e.getMessage());
        }
    }
}
