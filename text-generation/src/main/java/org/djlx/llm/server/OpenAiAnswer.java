// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import static org.djlx.llm.server.JsonOptions.object;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.djlx.llm.FinishReason;
import org.djlx.llm.GeneratedPiece;
import org.djlx.llm.Generation;
import org.djlx.llm.text.ToolCallStream;

/** Formats answers in OpenAI's schema. A streamed answer is server-sent events. */
final class OpenAiAnswer implements AnswerFormat {

    private final boolean chat;
    private final boolean streamed;
    private final boolean includesUsage;
    private final List<String> echoes;
    private final int choicesPerPrompt;
    private final LogProbabilities logProbabilities; // null if not asked for
    private final Tools tools; // null if the answer may not call tools
    private final List<ToolCallStream> calls; // of each choice; null if there are no tools
    private final int[] offsets; // of the next token of each choice of a streamed completion
    private final boolean[] begun; // each choice
    private final String[][] frames; // of each choice: an event before and after its text, or null
    private final String model;
    private final String id;
    private final long created = Instant.now().getEpochSecond();

    /**
     * {@code echoes} is the text before the generated text of each choice. {@code logProbabilities}
     * and {@code tools} are null for an answer without them. A streamed answer ends with the token
     * counts if {@code includesUsage}.
     */
    OpenAiAnswer(
            boolean chat,
            boolean streamed,
            boolean includesUsage,
            List<String> echoes,
            int choicesPerPrompt,
            LogProbabilities logProbabilities,
            Tools tools,
            String model) {
        this.chat = chat;
        this.streamed = streamed;
        this.includesUsage = includesUsage;
        this.echoes = echoes;
        this.choicesPerPrompt = choicesPerPrompt;
        this.logProbabilities = logProbabilities;
        this.tools = tools;
        calls = tools == null ? null : echoes.stream().map(echo -> tools.newStream()).toList();
        offsets = new int[echoes.size()];
        begun = new boolean[echoes.size()];
        frames = new String[echoes.size()][];
        this.model = model;
        id = (chat ? "chatcmpl-" : "cmpl-") + UUID.randomUUID();
    }

    @Override
    public boolean isStreamed() {
        return streamed;
    }

    /** Begins a choice: a chat with the role, a completion with the echo. */
    private String begin(int choice, Generation generation) {
        if (begun[choice]) {
            return "";
        }
        begun[choice] = true;
        if (!chat) {
            return textEvent(choice, echoes.get(choice), generation.promptPieces());
        }
        return event(chunk(choice, object("role", "assistant", "content", ""), null, null));
    }

    @Override
    public String piece(int choice, GeneratedPiece piece, Generation generation) {
        String begin = begin(choice, generation);
        if (tools == null) {
            return begin + textEvent(choice, piece.text(), List.of(piece));
        }
        return begin + parts(choice, calls.get(choice).add(tools.text(piece)), List.of(piece));
    }

    /** Returns the events of parts of an answer with tools. */
    private String parts(int choice, List<ToolCallStream.Part> parts, List<GeneratedPiece> pieces) {
        String text =
                parts.stream().map(ToolCallStream.Part::content).collect(Collectors.joining());
        StringBuilder events = new StringBuilder(textEvent(choice, text, pieces));
        for (ToolCallStream.Part part : parts) {
            if (part.call() >= 0) {
                JsonObject delta = object("tool_calls", List.of(call(part)));
                events.append(event(chunk(choice, delta, null, null)));
            }
        }
        return events.toString();
    }

    /** Returns a part of a call. Only the first one has id, type and name. */
    private static JsonObject call(ToolCallStream.Part part) {
        if (part.id() == null) {
            return object("index", part.call(), "function", object("arguments", part.arguments()));
        }
        return object(
                "index",
                part.call(),
                "id",
                part.id(),
                "type",
                "function",
                "function",
                object("name", part.name(), "arguments", part.arguments()));
    }

    private String textEvent(int choice, String text, List<GeneratedPiece> pieces) {
        if (logProbabilities == null) {
            return text.isEmpty() ? "" : textEvent(choice, text);
        }
        JsonElement probabilities = logProbabilities(pieces, offsets[choice]);
        offsets[choice] += pieces.stream().mapToInt(logProbabilities::length).sum();
        boolean isEmpty = text.isEmpty() && pieces.isEmpty();
        return isEmpty ? "" : event(chunk(choice, text(text), probabilities, null));
    }

    /** Returns the event of a text. Only the text is formatted, because each token has an event. */
    private String textEvent(int choice, String text) {
        if (frames[choice] == null) {
            String mark = id + '#';
            String event = event(chunk(choice, text(mark), JsonNull.INSTANCE, null));
            frames[choice] = event.split('"' + mark + '"', 2);
        }
        return frames[choice][0] + JsonOptions.GSON.toJson(text) + frames[choice][1];
    }

    private JsonElement logProbabilities(List<GeneratedPiece> pieces, int offset) {
        if (logProbabilities == null || pieces.isEmpty()) {
            return JsonNull.INSTANCE;
        }
        if (!chat) {
            return logProbabilities.completion(pieces, offset);
        }
        return object("content", logProbabilities.tokens(pieces), "refusal", null);
    }

    @Override
    public String end(int choice, Generation generation) {
        JsonObject content = chat ? new JsonObject() : text("");
        String rest = tools == null ? "" : parts(choice, calls.get(choice).end(), List.of());
        return begin(choice, generation)
                + rest
                + event(chunk(choice, content, null, reason(choice, generation)));
    }

    @Override
    public String end(List<Generation> generations) {
        String usage = "";
        if (includesUsage) {
            usage = event(answer(new JsonArray(), usage(generations)));
        }
        return usage + "data: [DONE]\n\n";
    }

    @Override
    public String failure(ApiException failure) {
        return "data: " + failure.toJson() + "\n\n";
    }

    private static String event(JsonObject json) {
        return "data: " + JsonOptions.GSON.toJson(json) + "\n\n";
    }

    private JsonObject text(String text) {
        return object(chat ? "content" : "text", text);
    }

    /** Returns an answer, or a part of it without usage. */
    private JsonObject answer(JsonArray choices, JsonObject usage) {
        String kind = streamed ? "chat.completion.chunk" : "chat.completion";
        JsonObject json = object("id", id, "object", chat ? kind : "text_completion");
        json.addProperty("created", created);
        json.addProperty("model", model);
        json.add("choices", choices);
        if (usage != null) {
            json.add("usage", usage);
        }
        return json;
    }

    private JsonObject chunk(
            int index, JsonObject content, JsonElement probabilities, String reason) {
        JsonObject choice = new JsonObject();
        if (chat) {
            choice.add("delta", content);
        } else {
            choice.add("text", content.get("text"));
        }
        JsonArray choices = new JsonArray();
        choices.add(choice(choice, index, probabilities, reason));
        return answer(choices, null);
    }

    private static JsonObject choice(
            JsonObject choice, int index, JsonElement probabilities, String reason) {
        choice.addProperty("index", index);
        choice.add("logprobs", probabilities);
        choice.addProperty("finish_reason", reason);
        return choice;
    }

    @Override
    public String whole(List<List<GeneratedPiece>> pieces, List<Generation> generations) {
        JsonArray choices = new JsonArray();
        for (int i = 0; i < generations.size(); i++) {
            String text = echoes.get(i) + text(pieces.get(i));
            JsonObject choice = new JsonObject();
            if (chat) {
                JsonObject message = object("role", "assistant", "content", text);
                if (tools != null) {
                    addCalls(message, pieces.get(i), calls.get(i));
                }
                choice.add("message", message);
            } else {
                choice.addProperty("text", text);
            }
            List<GeneratedPiece> listed = new ArrayList<>(generations.get(i).promptPieces());
            listed.addAll(pieces.get(i));
            JsonElement probabilities = logProbabilities(listed, 0);
            choices.add(choice(choice, i, probabilities, reason(i, generations.get(i))));
        }
        return JsonOptions.GSON.toJson(answer(choices, usage(generations)));
    }

    static String text(List<GeneratedPiece> pieces) {
        return pieces.stream().map(GeneratedPiece::text).collect(Collectors.joining());
    }

    /** Sets the calls of a message, and its content: null if there is nothing but calls. */
    private void addCalls(JsonObject message, List<GeneratedPiece> pieces, ToolCallStream stream) {
        String text = pieces.stream().map(tools::text).collect(Collectors.joining());
        JsonArray whole = new JsonArray();
        StringBuilder content = new StringBuilder();
        for (ToolCallStream.Part part :
                Stream.of(stream.add(text), stream.end()).flatMap(List::stream).toList()) {
            content.append(part.content());
            if (part.id() != null) {
                JsonObject call = call(part);
                call.remove("index");
                whole.add(call);
            } else if (part.call() >= 0) { // All arguments are one part, because the text was.
                whole.get(part.call())
                        .getAsJsonObject()
                        .getAsJsonObject("function")
                        .addProperty("arguments", part.arguments());
            }
        }
        boolean isNull = content.isEmpty() && !whole.isEmpty();
        message.addProperty("content", isNull ? null : content.toString());
        if (!whole.isEmpty()) {
            message.add("tool_calls", whole);
        }
    }

    private String reason(int choice, Generation generation) {
        if (generation.finishReason().orElseThrow() == FinishReason.LENGTH) {
            return "length";
        }
        return tools != null && calls.get(choice).calls() > 0 ? "tool_calls" : "stop";
    }

    /** Returns the token counts. A prompt counts once, whatever its number of choices. */
    private JsonObject usage(List<Generation> generations) {
        int prompts = 0;
        int cached = 0;
        for (int i = 0; i < generations.size(); i += choicesPerPrompt) {
            prompts += generations.get(i).promptTokens();
            cached += generations.get(i).cachedTokens();
        }
        int generated = generations.stream().mapToInt(Generation::generatedTokens).sum();
        return object(
                "prompt_tokens",
                prompts,
                "completion_tokens",
                generated,
                "total_tokens",
                prompts + generated,
                "prompt_tokens_details",
                object("cached_tokens", cached));
    }
}
