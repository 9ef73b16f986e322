// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import static org.djlx.llm.server.JsonOptions.object;

import com.google.gson.JsonArray;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import org.djlx.llm.FinishReason;
import org.djlx.llm.GeneratedPiece;
import org.djlx.llm.Generation;
import org.djlx.llm.text.AnswerParts;
import org.djlx.llm.text.AnswerStream.Part;

/**
 * Formats answers as OpenAI's <a
 * href="https://platform.openai.com/docs/api-reference/responses">responses</a>: a list of items,
 * which are messages and calls of tools. A streamed answer is server-sent events with names.
 */
final class ResponsesAnswer implements AnswerFormat {

    private final boolean streamed;
    private final JsonObject settings;
    private final LogProbabilities logProbabilities; // null if not asked for
    private final AnswerParts parts;
    private final String model;
    private final String id = newId("resp_");
    private final long created = Instant.now().getEpochSecond();
    private final JsonArray output = new JsonArray(); // items that have ended
    private JsonObject item; // the item that is being written; null between items
    private final StringBuilder text = new StringBuilder(); // of a message, or arguments of a call
    private JsonArray probabilities = new JsonArray(); // of the message
    private final List<GeneratedPiece> unlisted = new ArrayList<>(); // since the last text
    private int events;

    /**
     * {@code settings} are the options of the request that a response repeats; {@code
     * logProbabilities} is null for an answer without them.
     */
    ResponsesAnswer(
            boolean streamed,
            JsonObject settings,
            LogProbabilities logProbabilities,
            AnswerParts parts,
            String model) {
        this.streamed = streamed;
        this.settings = settings;
        this.logProbabilities = logProbabilities;
        this.parts = parts;
        this.model = model;
    }

    private static String newId(String prefix) {
        return prefix + UUID.randomUUID();
    }

    @Override
    public boolean isStreamed() {
        return streamed;
    }

    @Override
    public String begin() {
        return event("response.created", object("response", response("in_progress")))
                + event("response.in_progress", object("response", response("in_progress")));
    }

    @Override
    public String piece(int choice, GeneratedPiece piece, Generation generation) {
        unlisted.add(piece);
        return events(parts.add(piece.token(), piece.text()));
    }

    private String events(List<Part> parts) {
        StringBuilder events = new StringBuilder();
        for (Part part : parts) {
            events.append(
                    !part.reasoning().isEmpty()
                            ? reasoning(part.reasoning())
                            : part.call() < 0 ? text(part.content()) : call(part));
        }
        return events.toString();
    }

    private String reasoning(String more) {
        unlisted.clear();
        String begin = is("reasoning") ? "" : begin(reasoning());
        text.append(more);
        return begin + event("response.reasoning_text.delta", object("delta", more));
    }

    private static JsonObject reasoning() {
        JsonObject json = object("type", "reasoning", "id", newId("rs_"), "status", "in_progress");
        json.add("summary", new JsonArray());
        json.add("content", new JsonArray());
        return json;
    }

    /** Continues the message, or begins one. */
    private String text(String more) {
        if (more.isEmpty() && logProbabilities == null) {
            return "";
        }
        String begin = is("message") ? "" : begin(message());
        text.append(more);
        JsonArray listed = logProbabilities(more.length());
        probabilities.addAll(listed);
        JsonObject delta = object("delta", more, "logprobs", listed);
        return begin + event("response.output_text.delta", delta);
    }

    /**
     * Lists the last tokens, whose text has this length. Tokens before them belong to calls and are
     * not listed.
     */
    private JsonArray logProbabilities(int length) {
        int from = unlisted.size();
        int left = length;
        while (from > 0 && (left > 0 || unlisted.get(from - 1).text().isEmpty())) {
            left -= unlisted.get(--from).text().length();
        }
        List<GeneratedPiece> listed = unlisted.subList(from, unlisted.size());
        JsonArray json =
                logProbabilities == null ? new JsonArray() : logProbabilities.tokens(listed);
        unlisted.clear();
        return json;
    }

    private String call(Part part) {
        String begin = part.id() == null ? "" : begin(callOf(part));
        text.append(part.arguments());
        return part.arguments().isEmpty()
                ? begin
                : begin
                        + event(
                                "response.function_call_arguments.delta",
                                object("delta", part.arguments()));
    }

    private static JsonObject callOf(Part part) {
        JsonObject json = object("type", "function_call", "id", newId("fc_"));
        json.addProperty("status", "in_progress");
        json.addProperty("call_id", part.id());
        json.addProperty("name", part.name());
        json.addProperty("arguments", "");
        return json;
    }

    private static JsonObject message() {
        JsonObject json = object("type", "message", "id", newId("msg_"), "status", "in_progress");
        json.addProperty("role", "assistant");
        json.add("content", new JsonArray());
        return json;
    }

    /** Returns whether the item that is being written has a part with its text. */
    private boolean hasPart() {
        return item != null && item.has("content");
    }

    private boolean is(String type) {
        return item != null && item.get("type").getAsString().equals(type);
    }

    private String begin(JsonObject next) {
        String events = end("completed");
        item = next;
        events += event("response.output_item.added", object("item", item));
        return hasPart()
                ? events + event("response.content_part.added", object("part", part()))
                : events;
    }

    /** Ends the item that is being written, if there is one. */
    private String end(String status) {
        if (item == null) {
            return "";
        }
        String written = text.toString();
        String events;
        if (hasPart()) {
            JsonObject part = part();
            JsonObject done = object("text", written);
            if (is("message")) {
                done.add("logprobs", probabilities);
            }
            String name = is("message") ? "output_text" : "reasoning_text";
            events =
                    event("response." + name + ".done", done)
                            + event("response.content_part.done", object("part", part));
            item.getAsJsonArray("content").add(part);
        } else {
            events =
                    event(
                            "response.function_call_arguments.done",
                            object("name", item.get("name"), "arguments", written));
            item.addProperty("arguments", written);
        }
        item.addProperty("status", status);
        events += event("response.output_item.done", object("item", item));
        output.add(item);
        item = null;
        text.setLength(0);
        probabilities = new JsonArray();
        return events;
    }

    @Override
    public String end(int choice, Generation generation) {
        String rest = events(parts.end());
        if (item == null && output.isEmpty()) {
            rest += begin(message());
        }
        if (is("message") && !unlisted.isEmpty()) { // The token that ends the answer has no text.
            rest += text("");
        }
        return rest + end(status(generation));
    }

    @Override
    public String end(List<Generation> generations) {
        Generation generation = generations.get(0);
        return event("response." + status(generation), object("response", whole(generation)));
    }

    @Override
    public String failure(ApiException failure) {
        item = null;
        return event(
                "error",
                object("code", "server_error", "message", failure.getMessage(), "param", null));
    }

    @Override
    public String whole(List<List<GeneratedPiece>> pieces, List<Generation> generations) {
        Generation generation = generations.get(0);
        pieces.get(0).forEach(piece -> piece(0, piece, generation));
        end(0, generation);
        return JsonOptions.GSON.toJson(whole(generation));
    }

    private JsonObject whole(Generation generation) {
        JsonObject json = response(status(generation));
        if (status(generation).equals("incomplete")) {
            json.add("incomplete_details", object("reason", "max_output_tokens"));
        }
        int prompt = generation.promptTokens();
        int generated = generation.generatedTokens();
        JsonObject usage = object("input_tokens", prompt);
        usage.add("input_tokens_details", object("cached_tokens", generation.cachedTokens()));
        usage.addProperty("output_tokens", generated);
        usage.add("output_tokens_details", object("reasoning_tokens", parts.reasoningTokens()));
        usage.addProperty("total_tokens", prompt + generated);
        json.add("usage", usage);
        return json;
    }

    private static String status(Generation generation) {
        boolean isCut = generation.finishReason().orElseThrow() == FinishReason.LENGTH;
        return isCut ? "incomplete" : "completed";
    }

    private JsonObject response(String status) {
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

    /** Returns the only part of the message or of the reasoning. */
    private JsonObject part() {
        if (is("reasoning")) {
            return object("type", "reasoning_text", "text", text.toString());
        }
        JsonObject json = object("type", "output_text", "text", text.toString());
        json.add("annotations", new JsonArray());
        json.add("logprobs", probabilities);
        return json;
    }

    /** Returns an event, with the id and index of the item; empty if the answer is not streamed. */
    private String event(String type, JsonObject content) {
        if (!streamed) {
            return "";
        }
        JsonObject json = object("type", type, "sequence_number", events++);
        if (item != null) {
            json.add("item_id", item.get("id"));
            json.addProperty("output_index", output.size());
            if (hasPart()) {
                json.addProperty("content_index", 0);
            }
        }
        content.entrySet().forEach(entry -> json.add(entry.getKey(), entry.getValue()));
        return "event: " + type + "\ndata: " + JsonOptions.GSON.toJson(json) + "\n\n";
    }
}
