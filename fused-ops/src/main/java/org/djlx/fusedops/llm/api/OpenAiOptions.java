/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.llm.api;

import java.util.List;
import org.djlx.fusedops.llm.GenerationRequest;

/** The options by which OpenAI's clients say how tokens are chosen, in chats and in completions. */
final class OpenAiOptions {

    /** The tokens that end a generation, which OpenAI has not: as vLLM and DJL Serving name it. */
    private static final String STOP_TOKENS = "stop_token_ids";

    private static final int MOST_STOP_TOKENS = 128; // Each prompt of a request keeps them.

    private OpenAiOptions() {}

    /**
     * Reads them. Of those that nothing here can do, the values that ask for nothing are accepted,
     * as clients send them.
     */
    static GenerationRequest.Builder read(JsonOptions json) {
        requireNeutral(json);
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
        return json.integers(STOP_TOKENS, MOST_STOP_TOKENS);
    }

    static List<String> stops(JsonOptions json, String name) {
        List<String> stops = json.texts(name);
        if (stops.stream().anyMatch(String::isEmpty)) {
            throw json.wrong(name, "strings that are not empty");
        }
        return stops;
    }

    /** Refuses what the options of both schemas ask for that nothing here can do. */
    static void requireNeutral(JsonOptions json) {
        neutral(json, "n", 1);
        neutral(json, "best_of", 1);
        neutral(json, "presence_penalty", 0);
        neutral(json, "frequency_penalty", 0);
        neutral(json, "min_p", 0);
    }

    /** Returns among how many tokens is drawn; 0, or -1 as vLLM has it, is among all. */
    static int topK(JsonOptions json) {
        return (int) Math.max(0, json.integer("top_k", -1, Integer.MAX_VALUE, 0));
    }

    private static void neutral(JsonOptions json, String name, long value) {
        if (json.number(name, -Double.MAX_VALUE, Double.MAX_VALUE, value) != value) {
            throw json.wrong(name, value + ", as nothing else is possible");
        }
    }
}
