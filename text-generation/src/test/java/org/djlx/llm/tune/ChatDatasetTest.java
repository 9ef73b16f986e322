// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.tune;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.dataset.Batch;
import ai.djl.training.dataset.Record;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.stream.Collectors;
import java.util.stream.LongStream;
import org.djlx.llm.engine.ByteTokens;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Chats as tokens and labels; a token of the test's tokenizer is a byte. */
class ChatDatasetTest {

    private static final String ROLE =
            "{% if m.role == 'user' %}u{% elif m.role == 'system' %}s{% else %}a{% endif %}:";

    private static final String TEMPLATE =
            "{% if tools %}[{{ tools }}]{% endif %}{% for m in messages %}"
                    + ROLE
                    + "{{ m.content }}{% if m.note %}({{ m.note }}){% endif %}</s>{% endfor %}"
                    + "{% if add_generation_prompt %}a:{% endif %}";

    @TempDir private Path folder;
    private Path file;

    @BeforeEach
    void writeModel() throws Exception {
        ByteTokens.writeModel(folder, 1);
        Files.writeString(folder.resolve("chat_template.jinja"), TEMPLATE);
        file = folder.resolve("chats.jsonl");
    }

    private ChatDataset.Builder builder(String... lines) throws Exception {
        Files.writeString(file, String.join("\n", lines).replace('\'', '"'));
        return ChatDataset.builder().setFile(file).setDirectory(folder).setSampling(8, false);
    }

    /** Returns tokens as text, with | for the end token and _ for what is ignored. */
    private static String text(NDArray tokens) {
        return LongStream.of(tokens.toLongArray())
                .mapToObj(
                        token ->
                                token == TrainableModel.IGNORED
                                        ? "_"
                                        : token == ByteTokens.END ? "|" : "" + (char) token)
                .collect(Collectors.joining());
    }

    private static void requireRow(ChatDataset chats, int index, String data, String labels) {
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            Record row = chats.get(manager, index);
            assertEquals(data, text(row.getData().singletonOrThrow()));
            assertEquals(labels, text(row.getLabels().singletonOrThrow()));
        }
    }

    @Test
    void labelsTheAnswersOnly() throws Exception {
        ChatDataset chats =
                builder(
                                "{'messages': [{'role': 'user', 'content': 'Hi'},"
                                        + " {'role': 'assistant', 'content': 'Hello'}]}",
                                "",
                                "{'tools': 'T', 'messages': [{'role': 'system', 'content': 'S'},"
                                        + "{'role': 'user', 'content': 'a'},"
                                        + "{'role': 'assistant', 'content': 'bc', 'note': 'n'},"
                                        + "{'role': 'user', 'content': 'd'},"
                                        + "{'role': 'assistant', 'content': 'e'},"
                                        + "{'role': 'user', 'content': 'f'}]}")
                        .build();
        assertEquals(2, chats.size());
        requireRow(chats, 0, "u:Hi|a:Hello", "______Hello|");
        requireRow(chats, 1, "[T]s:S|u:a|a:bc(n)|u:d|a:e", "____________bc(n)|______e|");
        assertEquals(6 + 6 + 2, chats.answerTokens());
    }

    /** A template that leaves earlier answers' reasoning out: each answer is a row. */
    @Test
    void hasARowForEachAnswerThatIsLaterWrittenDifferently() throws Exception {
        Files.writeString(
                folder.resolve("chat_template.jinja"),
                "{% for m in messages %}"
                        + ROLE
                        + "{% if loop.last %}{{ m.thought }}{% endif"
                        + " %}{{ m.content }}</s>{% endfor %}"
                        + "{% if add_generation_prompt %}a:{% endif %}");
        String turn =
                "{'role': 'user', 'content': 'q'},"
                        + "{'role': 'assistant', 'content': 'a', 'thought': 'T'}";
        ChatDataset chats = builder("{'messages': [" + turn + "," + turn + "]}").build();
        assertEquals(2, chats.size());
        requireRow(chats, 0, "u:q|a:Ta", "_____Ta|");
        requireRow(chats, 1, "u:q|a:a|u:q|a:Ta", "_____________Ta|");
    }

    @Test
    void padsABatch() throws Exception {
        ChatDataset chats =
                builder(
                                "{'messages': [{'role': 'user', 'content': 'Hi'},"
                                        + " {'role': 'assistant', 'content': 'Hello'}]}",
                                "{'messages': [{'role': 'user', 'content': 'a'},"
                                        + " {'role': 'assistant', 'content': 'b'}]}")
                        .build();
        try (NDManager manager = NDManager.newBaseManager("PyTorch");
                Batch batch = chats.getData(manager).iterator().next()) {
            NDArray data = batch.getData().singletonOrThrow();
            NDArray labels = batch.getLabels().singletonOrThrow();
            assertEquals(new Shape(2, 12), data.getShape());
            assertEquals("u:a|a:b\0\0\0\0\0", text(data.get(1)));
            assertEquals("_____b|_____", text(labels.get(1)));
        }
    }

    @Test
    void cutsLongChats() throws Exception {
        String chat =
                "{'messages': [{'role': 'user', 'content': 'Hi'},"
                        + " {'role': 'assistant', 'content': 'Hello'}]}";
        requireRow(builder(chat).optMaxLength(10).build(), 0, "u:Hi|a:He", "______Hel");
        String message =
                assertThrows(
                                IllegalArgumentException.class,
                                () -> builder(chat).optMaxLength(7).build())
                        .getMessage();
        assertTrue(message.contains("line 1: the first 7 tokens of the chat have no"), message);
    }

    /** Special tokens in a message do not end it. */
    @Test
    void encodesSpecialTokensOfMessagesAsText() throws Exception {
        ChatDataset chats =
                builder(
                                "{'messages': [{'role': 'user', 'content': '</s>'},"
                                        + " {'role': 'assistant', 'content': 'x'}]}")
                        .build();
        requireRow(chats, 0, "u:</s>|a:x", "________x|");
    }

    /** A template gets arguments of calls as objects, and whole numbers, as from the server. */
    @Test
    void readsToolsAndTheirCalls() throws Exception {
        Files.writeString(
                folder.resolve("chat_template.jinja"),
                "{% for t in tools %}[{{ t.most }}]{% endfor %}{% for m in messages %}"
                        + ROLE
                        + "{% if m.content %}{{ m.content }}{% endif %}"
                        + "{% if m.tool_calls %}{% for c in m.tool_calls %}"
                        + "{{ c.function.arguments | tojson }}{% endfor %}{% endif %}</s>"
                        + "{% endfor %}{% if add_generation_prompt %}a:{% endif %}");
        ChatDataset chats =
                builder(
                                "{'tools': [{'most': 7}], 'messages': ["
                                        + "{'role': 'user', 'content': 'u'},"
                                        + "{'role': 'assistant', 'content': null, 'tool_calls':"
                                        + " [{'function': {'name': 'f',"
                                        + " 'arguments': '{\\'n\\': 3}'}}]}]}")
                        .build();
        requireRow(chats, 0, "[7]u:u|a:{\"n\": 3}", "________{\"n\": 3}|");
    }

    /** OpenAI's fine-tuning takes a weight of 0 or 1 for each answer. */
    @Test
    void ignoresAnswersOfWeight0() throws Exception {
        ChatDataset chats =
                builder(
                                "{'messages': [{'role': 'user', 'content': 'a'},"
                                        + "{'role': 'assistant', 'content': 'b', 'weight': 0},"
                                        + "{'role': 'user', 'content': 'c'},"
                                        + "{'role': 'assistant', 'content': 'd', 'weight': 1}]}")
                        .build();
        assertEquals(1, chats.size());
        requireRow(chats, 0, "u:a|a:b|u:c|a:d", "_____________d|");
    }

    @Test
    void namesTheLineOfAMistake() throws Exception {
        String good =
                "{'messages': [{'role': 'user', 'content': 'Hi'},"
                        + " {'role': 'assistant', 'content': 'Hello'}]}";
        Map<String, String> problems =
                Map.of(
                        "{'messages': 3}", "'messages' must be an array",
                        "{'messages': ['a']}", "a message must have a role and a content",
                        "{'messages': [{'role': 'assistant', 'content': ['x']}]}", "both strings",
                        "{'messages': [{'role': 'user', 'content': 'x'}]}", "no answer",
                        "{'messages': [{'role': 'user'}]}", "a role and a content",
                        "null", "must be a JSON object",
                        "foo", "not a JSON object",
                        "{'messages': [", "not a JSON object");
        for (Map.Entry<String, String> each : problems.entrySet()) {
            String message =
                    assertThrows(
                                    IllegalArgumentException.class,
                                    () -> builder(good, each.getKey()).build())
                            .getMessage();
            assertTrue(message.contains("chats.jsonl, line 2: "), message);
            assertTrue(message.contains(each.getValue()), message);
        }
        assertThrows(IllegalArgumentException.class, () -> builder("", "").build());
    }
}
