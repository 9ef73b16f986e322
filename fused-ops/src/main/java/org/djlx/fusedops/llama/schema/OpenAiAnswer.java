/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.llama.schema;

import com.google.gson.JsonArray;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import java.time.Instant;
import java.util.List;
import java.util.UUID;
import java.util.stream.Collectors;
import org.djlx.fusedops.llama.FinishReason;
import org.djlx.fusedops.llama.GeneratedPiece;
import org.djlx.fusedops.llama.Generation;

/** OpenAI's answers, whole or as server-sent events. */
final class OpenAiAnswer implements AnswerFormat {

    private final boolean chat;
    private final boolean streamed;
    private final boolean tellsUsage;
    private final String echo;
    private final String model;
    private final String id;
    private final long created = Instant.now().getEpochSecond();

    /**
     * Creates the format of an answer.
     *
     * @param chat whether it is a chat's
     * @param streamed whether it comes as events
     * @param tellsUsage whether the last event but one says how many tokens there were
     * @param echo what comes before the generated text
     * @param model the model's name
     */
    OpenAiAnswer(boolean chat, boolean streamed, boolean tellsUsage, String echo, String model) {
        this.chat = chat;
        this.streamed = streamed;
        this.tellsUsage = tellsUsage;
        this.echo = echo;
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
            return event(chunk(delta, null));
        }
        return echo.isEmpty() ? "" : event(chunk(text(echo), null));
    }

    @Override
    public String piece(GeneratedPiece piece) {
        return piece.text().isEmpty() ? "" : event(chunk(text(piece.text()), null));
    }

    @Override
    public String end(Generation generation) {
        JsonObject last = chunk(chat ? new JsonObject() : text(""), reason(generation));
        String usage = "";
        if (tellsUsage) {
            JsonObject json = header();
            json.add("choices", new JsonArray());
            json.add("usage", usage(generation));
            usage = event(json);
        }
        return event(last) + usage + "data: [DONE]\n\n";
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

    private JsonObject chunk(JsonObject content, String reason) {
        JsonObject choice = new JsonObject();
        if (chat) {
            choice.add("delta", content);
        } else {
            choice.add("text", content.get("text"));
        }
        return withChoice(choice, reason);
    }

    private JsonObject withChoice(JsonObject choice, String reason) {
        choice.addProperty("index", 0);
        choice.add("logprobs", JsonNull.INSTANCE);
        choice.addProperty("finish_reason", reason);
        JsonArray choices = new JsonArray();
        choices.add(choice);
        JsonObject json = header();
        json.add("choices", choices);
        return json;
    }

    @Override
    public String whole(List<GeneratedPiece> pieces, Generation generation) {
        String text =
                echo + pieces.stream().map(GeneratedPiece::text).collect(Collectors.joining());
        JsonObject choice = new JsonObject();
        if (chat) {
            JsonObject message = new JsonObject();
            message.addProperty("role", "assistant");
            message.addProperty("content", text);
            choice.add("message", message);
        } else {
            choice.addProperty("text", text);
        }
        JsonObject json = withChoice(choice, reason(generation));
        json.add("usage", usage(generation));
        return JsonOptions.GSON.toJson(json);
    }

    private static String reason(Generation generation) {
        return generation.finishReason().orElseThrow() == FinishReason.LENGTH ? "length" : "stop";
    }

    private static JsonObject usage(Generation generation) {
        JsonObject usage = new JsonObject();
        usage.addProperty("prompt_tokens", generation.promptTokens());
        usage.addProperty("completion_tokens", generation.generatedTokens());
        usage.addProperty("total_tokens", generation.promptTokens() + generation.generatedTokens());
        return usage;
    }
}
