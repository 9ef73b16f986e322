// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.djlx.llm.text.ReasoningFormat.Start;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class ReasoningStreamTest {

    /** Returns reasoning, content and calls of a text that comes in pieces of a length. */
    private static String divide(AnswerStream stream, String text, int length) {
        StringBuilder reasoning = new StringBuilder();
        StringBuilder content = new StringBuilder();
        StringBuilder calls = new StringBuilder();
        for (int i = 0; i <= text.length(); i += length) {
            String piece = text.substring(i, Math.min(text.length(), i + length));
            boolean isLast = i + length > text.length();
            for (AnswerStream.Part part : stream.add(piece)) {
                add(part, reasoning, content, calls);
            }
            if (isLast) {
                stream.end().forEach(part -> add(part, reasoning, content, calls));
            }
        }
        return reasoning + "|" + content + "|" + calls;
    }

    private static void add(
            AnswerStream.Part part,
            StringBuilder reasoning,
            StringBuilder content,
            StringBuilder calls) {
        reasoning.append(part.reasoning());
        content.append(part.content());
        calls.append(part.name() == null ? "" : part.name()).append(part.arguments());
    }

    /** A `/` stands for a line break; the expected parts are reasoning, content and calls. */
    @ParameterizedTest
    @CsvSource(
            quoteCharacter = '`',
            value = {
                "THINK, EITHER, <think>/a b//</think>//Hi /x, `a b|Hi /x|`",
                "THINK, EITHER, Hi <think>a</think>, Hi <think>a</think>",
                "THINK, EITHER, <thin, <thin",
                "THINK, EITHER, <think>a <b </thin, a <b </thin",
                "THINK, EITHER, <think></think>Hi, Hi",
                "THINK, EITHER, <think>, ``",
                "THINK, EITHER, /<think>a</think><think>b, a|<think>b",
                "THINK, REASONING, a/</think>//Hi, a|Hi",
                "THINK, REASONING, /<think>/a</think>Hi, a|Hi",
                "THINK, ANSWER, <think>a</think>Hi, <think>a</think>Hi",
                "DEEPSEEK_R1, REASONING, a, a|",
                "MISTRAL, EITHER, [THINK]a[/THINK]Hi, a|Hi",
                "SEED_OSS, EITHER, <seed:think>a</seed:think>Hi, a|Hi",
            })
    void dividesTheAnswerWhereverItIsCut(
            ReasoningFormat format, Start start, String text, String expected) {
        String[] parts = expected.split("\\|", -1);
        boolean isReasoning = start == Start.REASONING || text.startsWith("<think>a <b");
        String whole =
                parts.length > 1
                        ? parts[0] + "|" + parts[1] + "|"
                        : isReasoning ? expected + "||" : "|" + expected + "|";
        for (int length = 1; length <= text.length() + 1; length++) {
            assertEquals(
                    whole.replace('/', '\n').replace("<\n", "</").replace("[\n", "[/"),
                    divide(format.newStream(start, null), unescape(text), length),
                    text + " in pieces of " + length);
        }
    }

    private static String unescape(String text) {
        return text.replace('/', '\n').replace("<\n", "</").replace("[\n", "[/");
    }

    @Test
    void callsFollowTheReasoning() {
        String text =
                "<think>\n"
                        + "I call <tool_call>{\"name\": \"now\"}</tool_call>\n"
                        + "</think>\n\n"
                        + "<tool_call>\n"
                        + "{\"name\": \"now\", \"arguments\": {\"x\": 1}}\n"
                        + "</tool_call>";
        for (int length = 1; length <= text.length(); length++) {
            ToolCallStream tools = new ToolCallStream(ToolFormat.HERMES, Set.of("now"), false);
            assertEquals(
                    "I call <tool_call>{\"name\": \"now\"}</tool_call>||now{\"x\": 1}",
                    divide(ReasoningFormat.THINK.newStream(Start.EITHER, tools), text, length));
        }
    }

    /** As openai/harmony's documentation writes answers. Each marker is a token. */
    @Test
    void channelsAreReasoningContentAndCalls() {
        String text =
                "<|channel|>analysis<|message|>Need <| weather.<|end|><|start|>assistant"
                        + "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
                        + "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
                        + "{\"city\":\"Rome\"}<|call|>";
        assertEquals(
                "Need <| weather.|I look.|weather{\"city\":\"Rome\"}",
                divide(new ChannelStream(), text, text.length()));
        AnswerStream stream = new ChannelStream();
        StringBuilder reasoning = new StringBuilder();
        StringBuilder content = new StringBuilder();
        for (String piece :
                "<|channel|> analysis <|message|> 4 . <|end|> <|start|> assistant <|channel|> final <|message|> Four . <|return|>"
                        .split(" ")) {
            for (AnswerStream.Part part : stream.add(piece)) {
                add(part, reasoning, content, new StringBuilder());
            }
        }
        assertEquals("4.|Four.", reasoning + "|" + content);
    }

    @Test
    void theTemplateSaysTheFormat() {
        assertEquals(
                Optional.of(ReasoningFormat.THINK),
                of("{{ m.content.split('</think>')[-1] }}<think>"));
        assertEquals(Optional.of(ReasoningFormat.MISTRAL), of("[THINK]"));
        assertEquals(Optional.of(ReasoningFormat.CHANNELS), of("<|channel|>analysis<|message|>"));
        assertEquals(Optional.empty(), of("{{ messages[0].content }}"));
    }

    private static Optional<ReasoningFormat> of(String jinja) {
        return ReasoningFormat.of(new ChatTemplate(jinja, Map.of()));
    }

    @Test
    void theEndOfThePromptSaysWhatFollows() {
        ReasoningFormat think = ReasoningFormat.named("qwen3");
        assertEquals(Start.REASONING, think.start("<|im_start|>assistant\n<think>\n"));
        assertEquals(Start.ANSWER, think.start("assistant\n<think>\n\n</think>\n\n"));
        assertEquals(Start.EITHER, think.start("assistant\n"));
        assertEquals(Start.REASONING, ReasoningFormat.named("deepseek_r1").start("Assistant:"));
        Exception e =
                assertThrows(IllegalArgumentException.class, () -> ReasoningFormat.named("x"));
        assertTrue(e.getMessage().contains("deepseek_r1"), e.getMessage());
    }
}
