// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.api;

import static org.djlx.fusedops.llm.api.JsonOptions.object;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import org.djlx.fusedops.llm.FinishReason;
import org.djlx.fusedops.llm.GeneratedPiece;
import org.djlx.fusedops.llm.Generation;

/**
 * Formats answers as OpenAI's <a
 * href="https://platform.openai.com/docs/api-reference/responses">responses</a>, which have one
 * message. A streamed answer is server-sent events with names.
 */
final class ResponsesAnswer implements AnswerFormat {

    private final boolean streamed;
    private final JsonObject settings;
    private final LogProbabilities logProbabilities; // null if not asked for
    private final String model;
    private final String id = "resp_" + UUID.randomUUID();
    private final String messageId = "msg_" + UUID.randomUUID();
    private final long created = Instant.now().getEpochSecond();
    private final List<GeneratedPiece> pieces = new ArrayList<>(); // of a streamed answer
    private int events;

    /**
     * Creates the format of an answer.
     *
     * @param settings the options of the request that a response repeats
     * @param logProbabilities formats log probabilities; null for an answer without them
     */
    ResponsesAnswer(
            boolean streamed,
            JsonObject settings,
            LogProbabilities logProbabilities,
            String model) {
        this.streamed = streamed;
        this.settings = settings;
        this.logProbabilities = logProbabilities;
        this.model = model;
    }

    @Override
    public boolean isStreamed() {
        return streamed;
    }

    @Override
    public String begin() {
        return event("response.created", "response", response("in_progress", new JsonArray()))
                + event(
                        "response.in_progress",
                        "response",
                        response("in_progress", new JsonArray()))
                + event("response.output_item.added", "item", message("in_progress", null))
                + event("response.content_part.added", "part", part(List.of()));
    }

    @Override
    public String piece(int choice, GeneratedPiece piece, Generation generation) {
        pieces.add(piece);
        if (piece.text().isEmpty() && logProbabilities == null) {
            return "";
        }
        return textEvent("response.output_text.delta", "delta", List.of(piece));
    }

    private String textEvent(String type, String name, List<GeneratedPiece> of) {
        return event(type, object(name, OpenAiAnswer.text(of), "logprobs", logProbabilities(of)));
    }

    @Override
    public String end(int choice, Generation generation) {
        JsonObject item = message(status(generation), part(pieces));
        return textEvent("response.output_text.done", "text", pieces)
                + event("response.content_part.done", "part", part(pieces))
                + event("response.output_item.done", "item", item);
    }

    @Override
    public String end(List<Generation> generations) {
        String status = status(generations.get(0));
        return event("response." + status, "response", whole(pieces, generations.get(0)));
    }

    @Override
    public String failure(ApiException failure) {
        return event(
                "error",
                object("code", "server_error", "message", failure.getMessage(), "param", null));
    }

    @Override
    public String whole(List<List<GeneratedPiece>> pieces, List<Generation> generations) {
        return JsonOptions.GSON.toJson(whole(pieces.get(0), generations.get(0)));
    }

    private JsonObject whole(List<GeneratedPiece> of, Generation generation) {
        String status = status(generation);
        JsonArray output = new JsonArray();
        output.add(message(status, part(of)));
        JsonObject json = response(status, output);
        if (status.equals("incomplete")) {
            json.add("incomplete_details", object("reason", "max_output_tokens"));
        }
        int prompt = generation.promptTokens();
        int generated = generation.generatedTokens();
        JsonObject usage = object("input_tokens", prompt);
        usage.add("input_tokens_details", object("cached_tokens", generation.cachedTokens()));
        usage.addProperty("output_tokens", generated);
        usage.add("output_tokens_details", object("reasoning_tokens", 0));
        usage.addProperty("total_tokens", prompt + generated);
        json.add("usage", usage);
        return json;
    }

    private static String status(Generation generation) {
        boolean isCut = generation.finishReason().orElseThrow() == FinishReason.LENGTH;
        return isCut ? "incomplete" : "completed";
    }

    private JsonObject response(String status, JsonArray output) {
        JsonObject json = object("id", id, "object", "response", "created_at", created);
        json.addProperty("status", status);
        json.addProperty("model", model);
        json.add("error", JsonNull.INSTANCE);
        json.add("incomplete_details", JsonNull.INSTANCE);
        settings.entrySet().forEach(entry -> json.add(entry.getKey(), entry.getValue()));
        json.add("output", output);
        json.add("usage", JsonNull.INSTANCE);
        return json;
    }

    /** Returns the message; the part is null before it begins. */
    private JsonObject message(String status, JsonObject part) {
        JsonArray content = new JsonArray();
        if (part != null) {
            content.add(part);
        }
        JsonObject json = object("type", "message", "id", messageId, "status", status);
        json.addProperty("role", "assistant");
        json.add("content", content);
        return json;
    }

    private JsonObject part(List<GeneratedPiece> of) {
        JsonObject json = object("type", "output_text", "text", OpenAiAnswer.text(of));
        json.add("annotations", new JsonArray());
        json.add("logprobs", logProbabilities(of));
        return json;
    }

    private JsonArray logProbabilities(List<GeneratedPiece> of) {
        return logProbabilities == null ? new JsonArray() : logProbabilities.tokens(of);
    }

    private String event(String type, String name, JsonElement value) {
        return event(type, object(name, value));
    }

    /** Returns an event. Those of the message say where it stands. */
    private String event(String type, JsonObject content) {
        JsonObject json = object("type", type, "sequence_number", events++);
        if (!content.has("response") && !type.equals("error")) {
            json.addProperty("item_id", messageId);
            json.addProperty("output_index", 0);
            json.addProperty("content_index", 0);
        }
        content.entrySet().forEach(entry -> json.add(entry.getKey(), entry.getValue()));
        return "event: " + type + "\ndata: " + JsonOptions.GSON.toJson(json) + "\n\n";
    }
}
