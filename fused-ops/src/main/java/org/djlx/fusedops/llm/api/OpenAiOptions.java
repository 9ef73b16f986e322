// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.api;

import java.util.List;
import org.djlx.fusedops.llm.GenerationRequest;

/** Reads the options that OpenAI's chat completions and completions share. */
final class OpenAiOptions {

    /** Stop tokens: not in OpenAI's schema; the name is vLLM's and DJL Serving's. */
    private static final String STOP_TOKENS = "stop_token_ids";

    private static final int MAX_STOP_TOKENS = 128; // Each prompt of a request has a copy.

    private OpenAiOptions() {}

    /**
     * Reads sampling parameters and stop conditions. An unsupported option may have its default,
     * because clients send defaults; another value is an error.
     */
    static GenerationRequest.Builder read(JsonOptions json) {
        requireDefaults(json);
        json.text("user", "");
        json.object("logit_bias").requireNoOthers();
        JsonOptions format = json.object("response_format");
        if (!format.text("type", "text").equals("text")) {
            throw format.wrong("type", "text");
        }
        format.requireNoOthers();
        GenerationRequest.Builder builder =
                GenerationRequest.builder()
                        .optTemperature(json.number("temperature", 0, 100, 1))
                        .optTopP(json.number("top_p", Double.MIN_NORMAL, 1, 1))
                        .optTopK(topK(json))
                        .optRepetitionPenalty(
                                json.number("repetition_penalty", Double.MIN_NORMAL, 100, 1))
                        .optIgnoreEndOfText(json.flag("ignore_eos", false))
                        .optStopTokens(stopTokens(json))
                        .optStopStrings(stops(json, "stop"));
        if (json.has("seed")) {
            builder.optSeed(json.integer("seed", Long.MIN_VALUE, Long.MAX_VALUE, 0));
        }
        return builder;
    }

    static int[] stopTokens(JsonOptions json) {
        return json.integers(STOP_TOKENS, MAX_STOP_TOKENS);
    }

    static List<String> stops(JsonOptions json, String name) {
        List<String> stops = json.texts(name);
        if (stops.stream().anyMatch(String::isEmpty)) {
            throw json.wrong(name, "strings that are not empty");
        }
        return stops;
    }

    /** Refuses unsupported options of both schemas, unless they have their default. */
    static void requireDefaults(JsonOptions json) {
        requireDefault(json, "n", 1);
        requireDefault(json, "best_of", 1);
        requireDefault(json, "presence_penalty", 0);
        requireDefault(json, "frequency_penalty", 0);
        requireDefault(json, "min_p", 0);
    }

    /** Reads top-k. Both 0 and -1, vLLM's default, mean all tokens. */
    static int topK(JsonOptions json) {
        return (int) Math.max(0, json.integer("top_k", -1, Integer.MAX_VALUE, 0));
    }

    private static void requireDefault(JsonOptions json, String name, long value) {
        if (json.number(name, -Double.MAX_VALUE, Double.MAX_VALUE, value) != value) {
            throw json.wrong(name, value + "; other values are not supported");
        }
    }
}
