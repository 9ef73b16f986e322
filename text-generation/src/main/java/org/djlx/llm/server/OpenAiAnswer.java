// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import static org.djlx.llm.server.JsonOptions.object;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import java.time.Instant;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.function.Function;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.djlx.llm.FinishReason;
import org.djlx.llm.GeneratedPiece;
import org.djlx.llm.Generation;
import org.djlx.llm.text.AnswerParts;
import org.djlx.llm.text.AnswerStream.Part;

/** Formats answers in OpenAI's schema. A streamed answer is server-sent events. */
final class OpenAiAnswer implements AnswerFormat {

    private static final String REASONING = "reasoning_content"; // vLLM's and DeepSeek's

    private final boolean chat;
    private final boolean streamed;
    private final boolean includesUsage;
    private final List<String> echoes;
    private final int choicesPerPrompt;
    private final LogProbabilities logProbabilities; // null if not asked for
    private final List<AnswerParts> parts; // of each choice
    private final int[] offsets; // of the next token of each choice of a streamed completion
    private final boolean[] begun; // each choice
    private final Map<String, String[]> frames = new HashMap<>(); // events around a text
    private final String model;
    private final boolean onlyEchoes;
    private final String id;
    private final long created = Instant.now().getEpochSecond();

    /**
     * {@code echoes} is the text before the generated text of each choice. {@code logProbabilities}
     * is null for an answer without them. A streamed answer ends with the token counts if {@code
     * includesUsage}. {@code onlyEchoes}: what is generated is left out, because no token was asked
     * for.
     */
    OpenAiAnswer(
            boolean chat,
            boolean streamed,
            boolean includesUsage,
            List<String> echoes,
            int choicesPerPrompt,
            LogProbabilities logProbabilities,
            Supplier<AnswerParts> parts,
            String model,
            boolean onlyEchoes) {
        this.chat = chat;
        this.streamed = streamed;
        this.includesUsage = includesUsage;
        this.echoes = echoes;
        this.choicesPerPrompt = choicesPerPrompt;
        this.logProbabilities = logProbabilities;
        this.parts = echoes.stream().map(echo -> parts.get()).toList();
        offsets = new int[echoes.size()];
        begun = new boolean[echoes.size()];
        this.model = model;
        this.onlyEchoes = onlyEchoes;
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
        if (onlyEchoes) {
            return begin;
        }
        List<Part> added = parts.get(choice).add(piece.token(), piece.text());
        return begin + events(choice, added, List.of(piece));
    }

    private static String join(List<Part> parts, Function<Part, String> text) {
        return parts.stream().map(text).collect(Collectors.joining());
    }

    private String events(int choice, List<Part> parts, List<GeneratedPiece> pieces) {
        String reasoning = join(parts, Part::reasoning);
        StringBuilder events = new StringBuilder();
        if (!reasoning.isEmpty()) {
            events.append(textEvent(choice, REASONING, reasoning));
        }
        events.append(textEvent(choice, join(parts, Part::content), pieces));
        for (Part part : parts) {
            if (part.call() >= 0) {
                JsonObject delta = object("tool_calls", List.of(call(part)));
                events.append(event(chunk(choice, delta, null, null)));
            }
        }
        return events.toString();
    }

    /** Returns a part of a call. Only the first one has id, type and name. */
    private static JsonObject call(Part part) {
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
            return text.isEmpty() ? "" : textEvent(choice, content(), text);
        }
        JsonElement probabilities = logProbabilities(pieces, offsets[choice]);
        offsets[choice] += pieces.stream().mapToInt(logProbabilities::length).sum();
        boolean isEmpty = text.isEmpty() && pieces.isEmpty();
        return isEmpty ? "" : event(chunk(choice, text(text), probabilities, null));
    }

    /** Returns the event of a text. Only the text is formatted, because each token has an event. */
    private String textEvent(int choice, String name, String text) {
        String[] frame =
                frames.computeIfAbsent(
                        name + choice,
                        key -> {
                            String mark = id + '#';
                            JsonObject delta = object(name, mark);
                            return event(chunk(choice, delta, JsonNull.INSTANCE, null))
                                    .split('"' + mark + '"', 2);
                        });
        return frame[0] + JsonOptions.GSON.toJson(text) + frame[1];
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
        String rest = events(choice, parts.get(choice).end(), List.of());
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

    private String content() {
        return chat ? "content" : "text";
    }

    private JsonObject text(String text) {
        return object(content(), text);
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
            List<GeneratedPiece> generated = onlyEchoes ? List.of() : pieces.get(i);
            String text = echoes.get(i) + text(generated);
            JsonObject choice = new JsonObject();
            if (chat) {
                JsonObject message = object("role", "assistant", "content", text);
                addParts(message, all(parts.get(i), pieces.get(i)));
                choice.add("message", message);
            } else {
                choice.addProperty("text", text);
            }
            List<GeneratedPiece> listed = new ArrayList<>(generations.get(i).promptPieces());
            listed.addAll(generated);
            JsonElement probabilities = logProbabilities(listed, 0);
            choices.add(choice(choice, i, probabilities, reason(i, generations.get(i))));
        }
        return JsonOptions.GSON.toJson(answer(choices, usage(generations)));
    }

    static String text(List<GeneratedPiece> pieces) {
        return pieces.stream().map(GeneratedPiece::text).collect(Collectors.joining());
    }

    private static List<Part> all(AnswerParts parts, List<GeneratedPiece> pieces) {
        List<Part> all = new ArrayList<>();
        pieces.forEach(piece -> all.addAll(parts.add(piece.token(), piece.text())));
        all.addAll(parts.end());
        return all;
    }

    /** Sets the parts of a message. Its content is null if there is nothing but calls. */
    private static void addParts(JsonObject message, List<Part> parts) {
        JsonArray calls = new JsonArray();
        for (Part part : parts) {
            if (part.id() != null) {
                Stream<Part> of = parts.stream().filter(each -> each.call() == part.call());
                String arguments = join(of.toList(), Part::arguments);
                JsonObject call = call(Part.call(part.call(), part.id(), part.name(), arguments));
                call.remove("index");
                calls.add(call);
            }
        }
        String content = join(parts, Part::content);
        message.addProperty("content", content.isEmpty() && !calls.isEmpty() ? null : content);
        String reasoning = join(parts, Part::reasoning);
        if (!reasoning.isEmpty()) {
            message.addProperty(REASONING, reasoning);
        }
        if (!calls.isEmpty()) {
            message.add("tool_calls", calls);
        }
    }

    private String reason(int choice, Generation generation) {
        if (onlyEchoes || generation.finishReason().orElseThrow() == FinishReason.LENGTH) {
            return "length";
        }
        return parts.get(choice).calls() > 0 ? "tool_calls" : "stop";
    }

    /** Returns the token counts. A prompt counts once, whatever its number of choices. */
    private JsonObject usage(List<Generation> generations) {
        int prompts = 0;
        int cached = 0;
        for (int i = 0; i < generations.size(); i += choicesPerPrompt) {
            prompts += generations.get(i).promptTokens();
            cached += generations.get(i).cachedTokens();
        }
        int generated =
                onlyEchoes ? 0 : generations.stream().mapToInt(Generation::generatedTokens).sum();
        JsonObject usage =
                object(
                        "prompt_tokens",
                        prompts,
                        "completion_tokens",
                        generated,
                        "total_tokens",
                        prompts + generated,
                        "prompt_tokens_details",
                        object("cached_tokens", cached));
        int reasoning = parts.stream().mapToInt(AnswerParts::reasoningTokens).sum();
        if (reasoning > 0) {
            usage.add("completion_tokens_details", object("reasoning_tokens", reasoning));
        }
        return usage;
    }
}
