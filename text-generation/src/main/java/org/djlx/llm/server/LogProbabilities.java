// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import static org.djlx.llm.server.JsonOptions.object;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.djlx.llm.GeneratedPiece;
import org.djlx.llm.sampling.TokenLogProbability;
import org.djlx.llm.text.TextTokenizer;

/**
 * Formats log probabilities in OpenAI's schemas. They are those of the model: before penalties,
 * biases and temperature. As in vLLM, a stop token is listed, too. Thread-safe.
 */
final class LogProbabilities {

    private final TextTokenizer tokenizer;
    private final int[] context; // a token before the others, as some tokenizers drop a first space
    private final int contextLength;
    private final Map<Integer, String> specialTokens = new HashMap<>();
    // Each token is decoded once: an HTTP server formats answers where it must not take long.
    private final Map<Integer, String> texts = new ConcurrentHashMap<>();

    LogProbabilities(TextTokenizer tokenizer) {
        this.tokenizer = tokenizer;
        context = tokenizer.encode("a", false);
        contextLength = tokenizer.decode(context).length();
        for (String special : tokenizer.specialTokens()) {
            int[] tokens = tokenizer.encode(special, false);
            if (tokens.length == 1) {
                specialTokens.put(tokens[0], special);
            }
        }
        texts.putAll(specialTokens);
    }

    /** Returns the text of a token; U+FFFD for the bytes of an incomplete character. */
    private String text(int token) {
        return texts.computeIfAbsent(token, this::decode);
    }

    private String decode(int token) {
        int[] tokens = new int[context.length + 1];
        System.arraycopy(context, 0, tokens, 0, context.length);
        tokens[context.length] = token;
        String text = tokenizer.decode(tokens);
        return text.substring(Math.min(contextLength, text.length()));
    }

    JsonArray tokens(List<GeneratedPiece> pieces) {
        JsonArray all = new JsonArray();
        for (GeneratedPiece piece : pieces) {
            JsonArray top = new JsonArray();
            for (TokenLogProbability each : piece.topLogProbabilities()) {
                top.add(token(each.token(), each.logProbability()));
            }
            JsonObject json = token(piece.token(), piece.logProbability());
            json.add("top_logprobs", top);
            all.add(json);
        }
        return all;
    }

    private JsonObject token(int token, float logProbability) {
        String text = text(token);
        byte[] bytes = bytes(token, text);
        JsonArray json = new JsonArray();
        for (int i = 0; bytes != null && i < bytes.length; i++) {
            json.add(bytes[i] & 0xff);
        }
        JsonElement known = bytes == null ? JsonNull.INSTANCE : json;
        return object("token", text, "logprob", logProbability, "bytes", known);
    }

    /** Returns the bytes of a token; null if it is a part of a character of unknown bytes. */
    private byte[] bytes(int token, String text) {
        if (!text.contains("\uFFFD")) {
            return text.getBytes(StandardCharsets.UTF_8);
        }
        try {
            List<byte[]> bytes = tokenizer.tokenBytes();
            return token < bytes.size() ? bytes.get(token) : null;
        } catch (IllegalArgumentException e) {
            return null; // The tokenizer does not tell.
        }
    }

    /**
     * Returns the tokens of a completion, whose text begins at {@code offset}. The most probable
     * tokens of each place include the token itself; the first token of a prompt has none.
     */
    JsonObject completion(List<GeneratedPiece> pieces, int offset) {
        JsonArray tokens = new JsonArray();
        JsonArray logProbabilities = new JsonArray();
        JsonArray tops = new JsonArray();
        JsonArray offsets = new JsonArray();
        int next = offset;
        for (GeneratedPiece piece : pieces) {
            boolean isFirst = Float.isNaN(piece.logProbability());
            String text = text(piece.token());
            JsonElement top = isFirst ? JsonNull.INSTANCE : top(piece, text);
            tokens.add(text);
            logProbabilities.add(isFirst ? null : piece.logProbability());
            tops.add(top);
            offsets.add(next);
            next += length(piece);
        }
        JsonObject json = object("tokens", tokens, "token_logprobs", logProbabilities);
        json.add("top_logprobs", tops);
        json.add("text_offset", offsets);
        return json;
    }

    private JsonObject top(GeneratedPiece piece, String text) {
        JsonObject top = new JsonObject();
        top.addProperty(text, piece.logProbability());
        for (TokenLogProbability each : piece.topLogProbabilities()) {
            String other = text(each.token());
            if (!top.has(other)) { // Several tokens may have one text; the first is the likeliest.
                top.addProperty(other, each.logProbability());
            }
        }
        return top;
    }

    /** Returns the length of a token in the text, which has no special tokens. */
    int length(GeneratedPiece piece) {
        return specialTokens.containsKey(piece.token()) ? 0 : text(piece.token()).length();
    }
}
