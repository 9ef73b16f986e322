// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.tune;

import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.dataset.RandomAccessDataset;
import ai.djl.training.dataset.Record;
import ai.djl.translate.Batchifier;
import ai.djl.translate.PaddingStackBatchifier;
import ai.djl.util.Progress;
import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonParseException;
import com.google.gson.ToNumberPolicy;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.text.ChatTemplate;
import org.djlx.llm.text.ModelTokenizer;
import org.djlx.llm.text.TextTokenizer;
import org.djlx.nativeops.host.Required;

/**
 * Chats in JSONL as a dataset for a {@link TrainableModel}. Each line of the file is a chat in
 * OpenAI's format:
 *
 * <pre>{@code
 * {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]}
 * }</pre>
 *
 * <ul>
 *   <li>The model's chat template turns a chat into text. It gets the other entries of a line, such
 *       as {@code tools}, as variables, and messages with all their entries.
 *   <li>Data: token ids, int64 of shape (batch, tokens), padded on the right with 0.
 *   <li>Labels, of the same shape: the next token if it belongs to an answer of the assistant;
 *       otherwise {@link TrainableModel#IGNORED}. An answer includes all that the template writes
 *       after its text, such as the token that ends it.
 *   <li>As in OpenAI's fine-tuning, an answer with {@code "weight": 0} has no labels.
 *   <li>A chat is one row. Some templates write an answer differently when more messages follow,
 *       for example without its reasoning: then each such answer gets a row, which ends with it.
 * </ul>
 */
public final class ChatDataset extends RandomAccessDataset {

    private static final Gson GSON =
            new GsonBuilder()
                    .setObjectToNumberStrategy(ToNumberPolicy.LAZILY_PARSED_NUMBER)
                    .create();

    /** A row: its tokens, and the positions of those that belong to answers. */
    private record Row(int[] tokens, BitSet answers) {}

    private final List<Row> rows;

    private ChatDataset(Builder builder, List<Row> rows) {
        super(builder);
        this.rows = rows;
    }

    public static Builder builder() {
        return new Builder();
    }

    @Override
    public void prepare(Progress progress) {
        // build() has read the file.
    }

    @Override
    protected long availableSize() {
        return rows.size();
    }

    @Override
    public Record get(NDManager manager, long index) {
        Required.check(manager != null, "the manager of a row is null");
        Row row = rows.get(Math.toIntExact(index));
        long[] data = new long[row.tokens.length - 1];
        long[] labels = new long[data.length];
        for (int i = 0; i < data.length; i++) {
            data[i] = row.tokens[i];
            labels[i] = row.answers.get(i + 1) ? row.tokens[i + 1] : TrainableModel.IGNORED;
        }
        return new Record(new NDList(manager.create(data)), new NDList(manager.create(labels)));
    }

    /** {@return the number of tokens that have a label} */
    public long answerTokens() {
        return rows.stream().mapToLong(row -> row.answers.cardinality()).sum();
    }

    /** Encodes a chat into rows. */
    private record Encoder(ChatTemplate template, TextTokenizer tokenizer, int maxLength) {

        @SuppressWarnings("unchecked") // The entries of a JSON object have strings as keys.
        List<Row> rows(Map<String, Object> line) {
            Required.check(line != null, "the line must be a JSON object, not null");
            Map<String, Object> options = new HashMap<>(line);
            List<ChatTemplate.Message> chat = new ArrayList<>();
            if (!(options.remove("messages") instanceof List<?> messages)) {
                throw new IllegalArgumentException("'messages' must be an array");
            }
            List<Row> rows = new ArrayList<>();
            for (Object each : messages) {
                if (!(each instanceof Map<?, ?> message)
                        || !(message.get("role") instanceof String role)
                        || !isContent(message)) {
                    throw new IllegalArgumentException(
                            "a message must have a role and a content, both strings, not " + each);
                }
                Map<String, Object> more = new LinkedHashMap<>((Map<String, Object>) message);
                more.keySet().removeAll(List.of("role", "content", "weight"));
                if (message.get("tool_calls") instanceof List<?> calls) {
                    calls.forEach(Encoder::parseArguments);
                }
                List<ChatTemplate.Message> before = List.copyOf(chat);
                chat.add(new ChatTemplate.Message(role, (String) message.get("content"), more));
                boolean skipped =
                        message.get("weight") instanceof Number weight && weight.doubleValue() == 0;
                if (role.equals("assistant") && !skipped) {
                    add(rows, before, chat, options);
                }
            }
            Required.check(
                    !rows.stream().allMatch(row -> row.answers.isEmpty()),
                    "the first %d tokens of the chat have no answer of an assistant",
                    maxLength);
            rows.removeIf(row -> row.answers.isEmpty());
            return rows;
        }

        private static boolean isContent(Map<?, ?> message) {
            Object content = message.get("content");
            return content instanceof String
                    || content == null && message.get("tool_calls") instanceof List<?>;
        }

        /** Parses the arguments of a tool call: OpenAI has a string, templates take an object. */
        @SuppressWarnings("unchecked") // The entries of a JSON object have strings as keys.
        private static void parseArguments(Object call) {
            if (call instanceof Map<?, ?> map
                    && map.get("function") instanceof Map<?, ?> function
                    && function.get("arguments") instanceof String text) {
                Object arguments = text.isBlank() ? Map.of() : GSON.fromJson(text, Map.class);
                ((Map<String, Object>) function).put("arguments", arguments);
            }
        }

        /**
         * Adds the row of an answer, the last message of a chat. If the tokens of the previous row
         * are a prefix of it, it takes over their labels and replaces that row.
         */
        private void add(
                List<Row> rows,
                List<ChatTemplate.Message> before,
                List<ChatTemplate.Message> chat,
                Map<String, Object> options) {
            int[] prompt = template.encode(before, true, options, tokenizer, Integer.MAX_VALUE);
            int[] all = template.encode(chat, false, options, tokenizer, Integer.MAX_VALUE);
            int same = Arrays.mismatch(prompt, all);
            int begin = same < 0 ? all.length : same;
            // The tokenizer may join the end of the prompt and the start of the answer.
            if (begin < prompt.length - 1) {
                throw new IllegalArgumentException(
                        "the chat template does not continue the prompt of message %d: token %d of"
                                        .formatted(before.size() + 1, begin)
                                + " the prompt differs from that of the chat");
            }
            int[] kept = Arrays.copyOf(all, Math.min(all.length, maxLength));
            BitSet answers = new BitSet();
            answers.set(Math.min(begin, kept.length), kept.length);
            if (!rows.isEmpty()) {
                Row last = rows.get(rows.size() - 1);
                int length = last.tokens.length;
                if (length <= kept.length
                        && Arrays.equals(last.tokens, 0, length, kept, 0, length)) {
                    answers.or(last.answers);
                    rows.remove(rows.size() - 1);
                }
            }
            rows.add(new Row(kept, answers));
        }
    }

    /** Builds a {@link ChatDataset}; {@code setSampling} sets the chats of a batch. */
    public static final class Builder extends BaseBuilder<Builder> {

        private Path file;
        private Path directory;
        private int maxLength = Integer.MAX_VALUE;

        private Builder() {
            dataBatchifier = padding(0);
            labelBatchifier = padding(TrainableModel.IGNORED);
        }

        private static Batchifier padding(long value) {
            return PaddingStackBatchifier.builder()
                    .optIncludeValidLengths(false)
                    .addPad(0, 0, manager -> manager.create(new long[] {value}, new Shape(1)))
                    .build();
        }

        @Override
        protected Builder self() {
            return this;
        }

        /** Sets the file of chats in JSONL; empty lines are skipped. Required. */
        public Builder setFile(Path file) {
            this.file = file;
            return this;
        }

        /**
         * Sets a directory with {@code config.json}, {@code tokenizer.json} and the chat template.
         * Required.
         */
        public Builder setDirectory(Path directory) {
            this.directory = directory;
            return this;
        }

        /**
         * Sets the maximum number of tokens of a chat, 2 or more, after which it is cut off; by
         * default, and at most, that of the model.
         */
        public Builder optMaxLength(int maxLength) {
            this.maxLength = maxLength;
            return this;
        }

        /**
         * Reads and encodes the file.
         *
         * @throws IllegalArgumentException if an option is missing or out of range, or a line is
         *     not a chat; the message names the line
         */
        public ChatDataset build() throws IOException {
            if (file == null || directory == null || maxLength < 2) {
                throw new IllegalArgumentException(
                        "ChatDataset: set the file and the model's directory, and a maximum of 2"
                                + " tokens or more, not %s, %s and %d"
                                        .formatted(file, directory, maxLength));
            }
            int most = Math.min(maxLength, ModelConfig.read(directory).maxLength());
            List<Row> rows = new ArrayList<>();
            try (TextTokenizer tokenizer =
                    ModelTokenizer.read(directory.resolve("tokenizer.json"))) {
                Encoder encoder = new Encoder(ChatTemplate.of(directory), tokenizer, most);
                List<String> lines = Files.readAllLines(file);
                for (int i = 0; i < lines.size(); i++) {
                    if (!lines.get(i).isBlank()) {
                        rows.addAll(rows(encoder, lines.get(i), i + 1));
                    }
                }
            }
            Required.check(!rows.isEmpty(), "%s has no chats", file);
            return new ChatDataset(this, rows);
        }

        @SuppressWarnings("unchecked") // The entries of a JSON object have strings as keys.
        private List<Row> rows(Encoder encoder, String line, int number) {
            try {
                return encoder.rows(GSON.fromJson(line, Map.class));
            } catch (JsonParseException | IllegalArgumentException e) {
                throw new IllegalArgumentException(
                        "%s, line %d: %s%s"
                                .formatted(
                                        file,
                                        number,
                                        e instanceof JsonParseException
                                                ? "not a JSON object: "
                                                : "",
                                        e.getMessage()),
                        e);
            }
        }
    }
}
