// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.function.Supplier;
import java.util.regex.Pattern;
import org.djlx.llm.GenerationRequest;
import org.djlx.llm.sampling.Grammar;

/** Reads the options that OpenAI's chat completions, completions and responses share. */
final class OpenAiOptions {

    /** Stop tokens: not in OpenAI's schema; the name is vLLM's and DJL Serving's. */
    private static final String STOP_TOKENS = "stop_token_ids";

    private static final int MAX_STOP_TOKENS = 128; // Each prompt of a request has a copy.
    private static final int MAX_CHOICES = 1024;
    private static final int MAX_BIASES = 1024;

    /**
     * Options of OpenAI and vLLM that do not change the answer, with the accepted values in JSON;
     * none if all values are accepted.
     */
    private static final Map<String, String[]> NEUTRAL =
            Map.ofEntries(
                    neutral("user"),
                    neutral("metadata"),
                    neutral("prediction"), // makes OpenAI's answers faster
                    neutral("prompt_cache_key"),
                    neutral("prompt_cache_retention"),
                    neutral("safety_identifier"),
                    neutral("service_tier"),
                    neutral("request_id"),
                    neutral("spaces_between_special_tokens"),
                    neutral("store"), // Nothing is stored.
                    neutral("modalities", "[\"text\"]"),
                    neutral("functions", "[]"),
                    neutral("function_call", "\"none\"", "\"auto\""),
                    neutral("verbosity", "\"medium\""),
                    neutral("priority", "0"),
                    neutral("skip_special_tokens", "true"),
                    neutral("include_stop_str_in_output", "false"),
                    neutral("use_beam_search", "false"),
                    neutral("length_penalty", "1", "1.0"),
                    neutral("return_token_ids", "false"),
                    neutral("return_tokens_as_token_ids", "false"));

    private OpenAiOptions() {}

    private static Map.Entry<String, String[]> neutral(String name, String... values) {
        return Map.entry(name, values);
    }

    /** Reads options that do not change the answer, as {@link JsonOptions#neutral}. */
    static void neutral(JsonOptions json, Map<String, String[]> accepted) {
        accepted.forEach(json::neutral);
    }

    /**
     * Reads sampling parameters and stop conditions. An unsupported option may have a value that
     * does not change the answer, because clients send defaults; another value is an error.
     */
    static GenerationRequest.Builder read(JsonOptions json) {
        neutral(json, NEUTRAL);
        return sampling(json, 1, 1)
                .optIgnoreEndOfText(json.flag("ignore_eos", false))
                .optStopStrings(stops(json, "stop"));
    }

    /** Refuses tools and reasoning, in schemas that do not have them. */
    static void refuseTools(JsonOptions json) {
        json.neutral("reasoning_effort", "\"none\"");
        json.neutral("tools", "[]");
        json.neutral("tool_choice", "\"none\"", "\"auto\"");
        json.neutral("parallel_tool_calls");
    }

    /**
     * Reads OpenAI's {@code response_format}, or one of vLLM's {@code guided_} options. Returns
     * null if any text is allowed.
     */
    static Grammar grammar(JsonOptions json) {
        List<String> names =
                List.of("response_format", "guided_json", "guided_regex", "guided_choice");
        List<String> set = names.stream().filter(json::has).toList();
        if (set.size() > 1) {
            throw json.wrong(set.get(1), "left out beside '" + set.get(0) + "'");
        }
        if (set.isEmpty()) {
            return null;
        }
        String name = set.get(0);
        return grammar(
                json,
                name,
                () ->
                        switch (name) {
                            case "guided_json" -> Grammar.jsonSchema(json.json(name));
                            case "guided_regex" -> Grammar.regex(json.text(name, null));
                            case "guided_choice" -> Grammar.choice(json.texts(name, MAX_CHOICES));
                            default -> format(json.object(name), "json_schema");
                        });
    }

    /** Makes a grammar. If it is refused, the error names the option. */
    static Grammar grammar(JsonOptions json, String name, Supplier<Grammar> maker) {
        try {
            return maker.get();
        } catch (IllegalArgumentException e) {
            throw json.wrong(name, "supported: " + e.getMessage());
        }
    }

    /**
     * Reads a format of answers; null if it is text. {@code nested} names the object that holds the
     * schema; null if it is in the format.
     */
    static Grammar format(JsonOptions format, String nested) {
        String type = format.text("type", "text");
        if (!List.of("text", "json_object", "json_schema").contains(type)) {
            throw format.wrong("type", "text, json_object or json_schema");
        }
        Grammar grammar = type.equals("json_object") ? Grammar.jsonObject() : null;
        if (type.equals("json_schema")) {
            JsonOptions holder = nested == null ? format : format.object(nested);
            holder.neutral("name");
            holder.neutral("description");
            holder.neutral("strict"); // Answers always follow the schema.
            if (!holder.has("schema")) {
                throw holder.wrong("schema", "a JSON schema");
            }
            grammar = grammar(holder, "schema", () -> Grammar.jsonSchema(holder.json("schema")));
            holder.requireNoOthers();
        }
        format.requireNoOthers();
        return grammar;
    }

    /**
     * Reads the sampling parameters that all schemas share. {@code scale} is 0 for greedy sampling,
     * otherwise 1.
     */
    static GenerationRequest.Builder sampling(JsonOptions json, double temperature, int scale) {
        GenerationRequest.Builder builder =
                GenerationRequest.builder()
                        .optTemperature(scale * json.number("temperature", 0, 100, temperature))
                        .optTopP(json.number("top_p", Double.MIN_NORMAL, 1, 1))
                        .optTopK(topK(json))
                        .optMinP(json.number("min_p", 0, 1, 0))
                        .optRepetitionPenalty(
                                json.number("repetition_penalty", Double.MIN_NORMAL, 100, 1))
                        .optFrequencyPenalty(json.number("frequency_penalty", -2, 2, 0))
                        .optPresencePenalty(json.number("presence_penalty", -2, 2, 0))
                        .optLogitBias(json.numbersByToken("logit_bias", -100, 100, MAX_BIASES))
                        .optMinTokens((int) json.integer("min_tokens", 0, Integer.MAX_VALUE, 0))
                        .optStopTokens(stopTokens(json));
        if (json.has("seed")) {
            builder.optSeed(seed(json));
        }
        return builder;
    }

    private static long seed(JsonOptions json) {
        return json.integer("seed", Long.MIN_VALUE, Long.MAX_VALUE, 0);
    }

    static int choices(JsonOptions json, int prompts) {
        int n = (int) json.integer("n", 1, JsonOptions.MAX_PROMPTS / prompts, 1);
        if (json.integer("best_of", 1, JsonOptions.MAX_PROMPTS, n) != n) {
            throw json.wrong("best_of", "the same as 'n'; other values are not supported");
        }
        return n;
    }

    /**
     * Builds the requests of a prompt's choices. As in vLLM, the seed of each is the seed of the
     * one before it plus 1.
     */
    static List<GenerationRequest> build(
            GenerationRequest.Builder builder, JsonOptions json, int choices) {
        List<GenerationRequest> requests = new ArrayList<>();
        for (int i = 0; i < choices; i++) {
            if (json.has("seed")) {
                builder.optSeed(seed(json) + i);
            }
            requests.add(build(builder));
        }
        return requests;
    }

    static GenerationRequest build(GenerationRequest.Builder builder) {
        try {
            return builder.build();
        } catch (IllegalArgumentException e) {
            // Java's names are those of requests in camel case.
            String message =
                    Pattern.compile("[a-z]+(?:[A-Z][a-z]*)+(?= must)")
                            .matcher(e.getMessage())
                            .replaceAll(
                                    name ->
                                            name.group()
                                                    .replaceAll("([A-Z])", "_$1")
                                                    .toLowerCase(Locale.ROOT));
            throw ApiException.badRequest(null, message);
        }
    }

    static int[] stopTokens(JsonOptions json) {
        return json.integers(STOP_TOKENS, MAX_STOP_TOKENS);
    }

    static List<String> stops(JsonOptions json, String name) {
        List<String> stops = json.texts(name, JsonOptions.MAX_STRINGS);
        if (stops.stream().anyMatch(String::isEmpty)) {
            throw json.wrong(name, "strings that are not empty");
        }
        return stops;
    }

    /** Reads top-k. Both 0 and -1, vLLM's default, mean all tokens. */
    static int topK(JsonOptions json) {
        return (int) Math.max(0, json.integer("top_k", -1, Integer.MAX_VALUE, 0));
    }
}
