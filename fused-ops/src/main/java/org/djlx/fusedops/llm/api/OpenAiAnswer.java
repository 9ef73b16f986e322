// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.api;

import com.google.gson.JsonArray;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import java.time.Instant;
import java.util.List;
import java.util.UUID;
import java.util.stream.Collectors;
import org.djlx.fusedops.llm.FinishReason;
import org.djlx.fusedops.llm.GeneratedPiece;
import org.djlx.fusedops.llm.Generation;

/** Formats answers in OpenAI's schema. A streamed answer is server-sent events. */
final class OpenAiAnswer implements AnswerFormat {

    private final boolean chat;
    private final boolean streamed;
    private final boolean includesUsage;
    private final List<String> echoes;
    private final String model;
    private final String id;
    private final long created = Instant.now().getEpochSecond();

    /**
     * Creates the format of an answer.
     *
     * @param chat whether this is a chat completion
     * @param includesUsage whether a streamed answer ends with the token counts
     * @param echoes the text before the generated text of each choice
     */
    OpenAiAnswer(
            boolean chat,
            boolean streamed,
            boolean includesUsage,
            List<String> echoes,
            String model) {
        this.chat = chat;
        this.streamed = streamed;
        this.includesUsage = includesUsage;
        this.echoes = echoes;
        this.model = model;
        id = (chat ? "chatcmpl-" : "cmpl-") + UUID.randomUUID();
    }

    @Override
    public boolean isStreamed() {
        return streamed;
    }

    @Override
    public String contentType() {
        return streamed ? "text/event-stream" : "application/json";
    }

    @Override
    public String begin() {
        if (chat) {
            JsonObject delta = new JsonObject();
            delta.addProperty("role", "assistant");
            delta.addProperty("content", "");
            return event(chunk(0, delta, null));
        }
        StringBuilder events = new StringBuilder();
        for (int choice = 0; choice < echoes.size(); choice++) {
            events.append(textEvent(choice, echoes.get(choice)));
        }
        return events.toString();
    }

    @Override
    public String piece(int choice, GeneratedPiece piece) {
        return textEvent(choice, piece.text());
    }

    private String textEvent(int choice, String text) {
        return text.isEmpty() ? "" : event(chunk(choice, text(text), null));
    }

    @Override
    public String end(int choice, Generation generation) {
        return event(chunk(choice, chat ? new JsonObject() : text(""), reason(generation)));
    }

    @Override
    public String end(List<Generation> generations) {
        String usage = "";
        if (includesUsage) {
            JsonObject json = header();
            json.add("choices", new JsonArray());
            json.add("usage", usage(generations));
            usage = event(json);
        }
        return usage + "data: [DONE]\n\n";
    }

    @Override
    public String failure(ApiException failure) {
        return "data: " + failure.toJson() + "\n\n";
    }

    @Override
    public ApiException refusal(ApiException failure) {
        return failure;
    }

    private static String event(JsonObject json) {
        return "data: " + JsonOptions.GSON.toJson(json) + "\n\n";
    }

    private JsonObject text(String text) {
        JsonObject json = new JsonObject();
        json.addProperty(chat ? "content" : "text", text);
        return json;
    }

    private JsonObject header() {
        JsonObject json = new JsonObject();
        json.addProperty("id", id);
        json.addProperty(
                "object",
                chat ? streamed ? "chat.completion.chunk" : "chat.completion" : "text_completion");
        json.addProperty("created", created);
        json.addProperty("model", model);
        return json;
    }

    private JsonObject chunk(int index, JsonObject content, String reason) {
        JsonObject choice = new JsonObject();
        if (chat) {
            choice.add("delta", content);
        } else {
            choice.add("text", content.get("text"));
        }
        JsonArray choices = new JsonArray();
        choices.add(choice(choice, index, reason));
        JsonObject json = header();
        json.add("choices", choices);
        return json;
    }

    private static JsonObject choice(JsonObject choice, int index, String reason) {
        choice.addProperty("index", index);
        choice.add("logprobs", JsonNull.INSTANCE);
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
                JsonObject message = new JsonObject();
                message.addProperty("role", "assistant");
                message.addProperty("content", text);
                choice.add("message", message);
            } else {
                choice.addProperty("text", text);
            }
            choices.add(choice(choice, i, reason(generations.get(i))));
        }
        JsonObject json = header();
        json.add("choices", choices);
        json.add("usage", usage(generations));
        return JsonOptions.GSON.toJson(json);
    }

    /** Returns the concatenated texts of pieces. */
    static String text(List<GeneratedPiece> pieces) {
        return pieces.stream().map(GeneratedPiece::text).collect(Collectors.joining());
    }

    private static String reason(Generation generation) {
        return generation.finishReason().orElseThrow() == FinishReason.LENGTH ? "length" : "stop";
    }

    private static JsonObject usage(List<Generation> generations) {
        int prompts = generations.stream().mapToInt(Generation::promptTokens).sum();
        int generated = generations.stream().mapToInt(Generation::generatedTokens).sum();
        JsonObject usage = new JsonObject();
        usage.addProperty("prompt_tokens", prompts);
        usage.addProperty("completion_tokens", generated);
        usage.addProperty("total_tokens", prompts + generated);
        JsonObject details = new JsonObject();
        int cached = generations.stream().mapToInt(Generation::cachedTokens).sum();
        details.addProperty("cached_tokens", cached);
        usage.add("prompt_tokens_details", details);
        return usage;
    }
}
