// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import com.google.gson.annotations.SerializedName;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.LongConsumer;
import org.djlx.llm.EmbeddingModel;
import org.djlx.llm.Embeddings;
import org.djlx.llm.text.ContextLengthException;
import org.djlx.nativeops.host.Required;

/**
 * Answers requests in OpenAI's schema of <a
 * href="https://platform.openai.com/docs/api-reference/embeddings">embeddings</a>, and in that of
 * DJL Serving ({@code inputs}). Unknown options are errors, not ignored. Thread-safe.
 */
public final class EmbeddingApi {

    private static final int MAX_TEXTS = 2048; // OpenAI's
    private static final int FLOAT_BYTES = 16; // of a number in JSON, at most: -1.17549435E-38,
    private static final int ENTRY_BYTES = 128; // of a vector, without its numbers

    /** OpenAI's answer, as JSON. */
    private record Answer(String object, List<Vector> data, String model, Usage usage) {}

    /** A vector in it: an array of numbers, or a text. */
    private record Vector(String object, int index, Object embedding) {}

    private record Usage(
            @SerializedName("prompt_tokens") long prompt,
            @SerializedName("total_tokens") long total) {}

    private final Set<String> names = ConcurrentHashMap.newKeySet(); // of requests
    private volatile String name;
    private final EmbeddingModel model;

    /** Creates an API; {@code name} is the model's for clients. The caller closes the model. */
    public EmbeddingApi(String name, EmbeddingModel model) {
        this.model = Required.argument("EmbeddingApi: model", model);
        rename(name);
    }

    public String model() {
        return name;
    }

    /** Changes the name for clients. Requests may still give earlier names; answers repeat them. */
    public void rename(String name) {
        names.add(Required.argument("rename: name", name));
        this.name = name;
    }

    /**
     * Answers a request for embeddings. Blocks until they are computed.
     *
     * @throws ApiException if the request is not valid
     * @throws java.util.concurrent.RejectedExecutionException if too many texts wait
     */
    public String embeddings(byte[] utf8) {
        return embeddings(utf8, bytes -> {});
    }

    /**
     * As the other method. Before vectors are computed, {@code reserve} gets the most bytes that
     * the answer may have; it throws if there is no memory for them.
     */
    String embeddings(byte[] utf8, LongConsumer reserve) {
        JsonOptions json = JsonOptions.parse(utf8);
        String requested = json.text("model", name);
        if (!names.contains(requested)) {
            throw new ApiException(
                    404,
                    "model",
                    "unknown model '%s'; this server has '%s' for embeddings"
                            .formatted(requested, name));
        }
        json.neutral("user");
        boolean isInvocation = json.has("inputs") && !json.has("input");
        String input = isInvocation ? "inputs" : "input";
        String format = json.text("encoding_format", "float");
        if (!List.of("float", "base64").contains(format)) {
            throw json.wrong("encoding_format", "float or base64");
        }
        long dimensions = json.integer("dimensions", 1, model.dimensions(), model.dimensions());
        String prompt = json.text("prompt_name", null);
        if (prompt != null && !model.config().prompts().containsKey(prompt)) {
            throw json.wrong("prompt_name", "one of " + model.config().prompts().keySet());
        }
        JsonOptions inputs = json.prompts(input, MAX_TEXTS);
        json.requireNoOthers();
        try {
            List<int[]> texts = tokens(inputs, prompt);
            int vectorBytes = format.equals("base64") ? Float.BYTES * 4 / 3 + 1 : FLOAT_BYTES;
            reserve.accept(texts.size() * (dimensions * vectorBytes + ENTRY_BYTES));
            Embeddings result = model.embedTokens(texts, (int) dimensions);
            boolean isList = json.isArrayOfTexts(input);
            return isInvocation
                    ? JsonOptions.GSON.toJson(isList ? result.vectors() : result.vectors().get(0))
                    : answer(result, requested, format.equals("base64"));
        } catch (ContextLengthException e) {
            throw TextApi.tooLong(e, input, null);
        } catch (IllegalArgumentException e) {
            throw ApiException.badRequest(input, e.getMessage());
        }
    }

    /** Returns each input's tokens: an array of tokens as it is, and a text encoded. */
    private List<int[]> tokens(JsonOptions inputs, String prompt) {
        Map<String, int[]> tokens = new LinkedHashMap<>(); // by the input's name, in their order
        List<String> names = new ArrayList<>();
        List<String> texts = new ArrayList<>();
        for (String name : inputs.names()) {
            boolean isArray = inputs.isArray(name);
            int[] given = isArray ? inputs.integers(name, Integer.MAX_VALUE) : new int[0];
            String text = isArray ? "" : inputs.text(name, "");
            if (given.length == 0 && text.isEmpty()) {
                throw inputs.wrong(name, "a non-empty text or array of tokens");
            }
            tokens.put(name, given);
            if (!isArray) {
                names.add(name);
                texts.add(text);
            }
        }
        List<int[]> encoded = model.encode(texts, prompt);
        for (int i = 0; i < names.size(); i++) {
            tokens.put(names.get(i), encoded.get(i));
        }
        return List.copyOf(tokens.values());
    }

    private static String answer(Embeddings result, String name, boolean base64) {
        List<Vector> data = new ArrayList<>();
        for (float[] each : result.vectors()) {
            data.add(new Vector("embedding", data.size(), base64 ? base64(each) : each));
        }
        Usage usage = new Usage(result.tokens(), result.tokens());
        return JsonOptions.GSON.toJson(new Answer("list", data, name, usage));
    }

    /** Returns the bytes of float32 numbers, little-endian. */
    private static String base64(float[] vector) {
        ByteBuffer bytes = ByteBuffer.allocate(vector.length * Float.BYTES);
        bytes.order(ByteOrder.LITTLE_ENDIAN).asFloatBuffer().put(vector);
        return Base64.getEncoder().encodeToString(bytes.array());
    }
}
