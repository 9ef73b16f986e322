// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import static org.djlx.llm.server.JsonOptions.object;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import java.util.List;
import org.djlx.llm.GeneratedPiece;
import org.djlx.llm.Generation;

/** DJL Serving's schema. A streamed answer is JSON lines; the last line has the complete text. */
final class InvocationAnswer implements AnswerFormat {

    private final boolean streamed;
    private final boolean details;
    private final boolean echoes;
    private final List<String> prompts;
    private final boolean array;
    private final StringBuilder text = new StringBuilder();
    private GeneratedPiece held; // sent with the next call, because the last line differs

    /**
     * {@code details} and {@code array} shape an answer that is not streamed. {@code echoes}: the
     * generated text begins with the prompt. A streamed answer has one prompt.
     */
    InvocationAnswer(
            boolean streamed,
            boolean details,
            boolean echoes,
            List<String> prompts,
            boolean array) {
        this.streamed = streamed;
        this.details = details;
        this.echoes = echoes;
        this.prompts = prompts;
        this.array = array;
    }

    @Override
    public boolean isStreamed() {
        return streamed;
    }

    @Override
    public String contentType() {
        return streamed ? "application/jsonlines" : "application/json";
    }

    @Override
    public String piece(int choice, GeneratedPiece piece, Generation generation) {
        String line = held == null ? "" : line(object("token", token(held)));
        held = piece;
        text.append(piece.text());
        return line;
    }

    @Override
    public String end(int choice, Generation generation) {
        JsonObject last = object("token", held == null ? null : token(held));
        last.addProperty("generated_text", echo(choice) + text);
        last.add("details", details(choice, generation));
        return line(last);
    }

    @Override
    public String end(List<Generation> generations) {
        return "";
    }

    private String echo(int choice) {
        return echoes ? prompts.get(choice) : "";
    }

    @Override
    public String failure(ApiException failure) {
        JsonObject last = object("token", token(-1, "", -1), "generated_text", "");
        last.add(
                "details",
                object("finish_reason", "error", "generated_tokens", null, "inputs", null));
        last.addProperty("error", failure.getMessage());
        return line(last);
    }

    @Override
    public ApiException refusal(ApiException failure) {
        return failure.forInvocation();
    }

    private static String line(JsonObject json) {
        return JsonOptions.GSON.toJson(json) + '\n';
    }

    private static JsonObject token(GeneratedPiece piece) {
        return token(piece.token(), piece.text(), piece.logProbability());
    }

    private static JsonObject token(int id, String text, float logProbability) {
        Float finite = Float.isFinite(logProbability) ? logProbability : null;
        return object("id", id, "text", text, "log_prob", finite);
    }

    private JsonObject details(int choice, Generation generation) {
        JsonObject json = object("finish_reason", reason(generation));
        json.addProperty("generated_tokens", generation.generatedTokens());
        json.addProperty("inputs", prompts.get(choice));
        return json;
    }

    private static String reason(Generation generation) {
        return switch (generation.finishReason().orElseThrow()) {
            case LENGTH -> "length";
            case STOP_STRING -> "stop_sequence";
            default -> "eos_token";
        };
    }

    @Override
    public String whole(List<List<GeneratedPiece>> pieces, List<Generation> generations) {
        JsonArray answers = new JsonArray();
        for (int i = 0; i < generations.size(); i++) {
            answers.add(whole(i, pieces.get(i), generations.get(i)));
        }
        return JsonOptions.GSON.toJson(array ? answers : answers.get(0));
    }

    private JsonObject whole(int choice, List<GeneratedPiece> pieces, Generation generation) {
        JsonObject json = object("generated_text", echo(choice) + OpenAiAnswer.text(pieces));
        if (details) {
            JsonArray tokens = new JsonArray();
            pieces.forEach(piece -> tokens.add(token(piece)));
            JsonObject object = details(choice, generation);
            object.add("tokens", tokens);
            json.add("details", object);
        }
        return json;
    }
}
