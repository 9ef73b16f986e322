// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.api;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.djlx.fusedops.llm.GenerationRequest;
import org.djlx.fusedops.llm.TextGenerator;
import org.djlx.fusedops.llm.text.ChatTemplate;
import org.djlx.fusedops.llm.text.TextTokenizer;

/**
 * Reads requests for one model: OpenAI's <a
 * href="https://platform.openai.com/docs/api-reference/chat">chat completions</a> and <a
 * href="https://platform.openai.com/docs/api-reference/completions">completions</a>, and DJL
 * Serving's <a
 * href="https://docs.djl.ai/master/docs/serving/serving/docs/lmi/user_guides/lmi_input_output_schema.html">text
 * generation</a>. Unknown options are errors, not ignored. Thread-safe.
 */
public final class TextApi {

    private static final int DEFAULT_COMPLETION = 16; // OpenAI's
    private static final int DEFAULT_INVOCATION = 30; // DJL Serving's

    private final String model;
    private final TextGenerator generator;
    private final TextTokenizer tokenizer;
    private final ChatTemplate template;

    /**
     * Creates an API.
     *
     * @param model the model's name for clients
     * @param generator the generator; the caller closes it
     * @param template the model's chat template
     * @throws IllegalArgumentException if an argument is null, or the model has no tokenizer
     */
    public TextApi(String model, TextGenerator generator, ChatTemplate template) {
        if (model == null || generator == null || template == null) {
            throw new IllegalArgumentException("the name, generator or chat template is null");
        }
        this.model = model;
        this.generator = generator;
        this.template = template;
        tokenizer =
                generator
                        .tokenizer()
                        .orElseThrow(
                                () ->
                                        new IllegalArgumentException(
                                                "the model " + model + " has no tokenizer"));
    }

    /** {@return the model's name} */
    public String model() {
        return model;
    }

    /**
     * Reads a request in any of the three schemas: {@code messages} make it a chat completion,
     * {@code inputs} DJL Serving's, otherwise it is a completion.
     *
     * @param json the request, in UTF-8
     * @return the request
     * @throws ApiException if the request is not valid. The error has the schema of the request, or
     *     DJL Serving's schema if the request is not a JSON object
     */
    public TextCall read(byte[] json) {
        JsonOptions options = parseInvocation(json);
        if (options.has("messages")) {
            return chat(options);
        }
        return options.has("inputs") ? invocation(options) : completion(options);
    }

    /**
     * Reads a request for a chat completion.
     *
     * @param json the request, in UTF-8
     * @return the request
     * @throws ApiException if the request is not valid
     */
    public TextCall chat(byte[] json) {
        return chat(JsonOptions.parse(json));
    }

    private TextCall chat(JsonOptions json) {
        json.setDefaults(generator.samplingDefaults().values());
        checkModel(json);
        boolean streamed = json.flag("stream", false);
        boolean usage = usage(json, streamed);
        if (json.flag("logprobs", false)) {
            throw json.wrong("logprobs", "false; log probabilities are not supported");
        }
        GenerationRequest.Builder builder = OpenAiOptions.read(json);
        String name = json.has("max_tokens") ? "max_tokens" : "max_completion_tokens";
        long maxTokens = json.integer(name, 1, Integer.MAX_VALUE, 0);
        List<ChatTemplate.Message> messages = new ArrayList<>();
        for (JsonOptions message : json.objects("messages")) {
            messages.add(message(message));
        }
        boolean generation = json.flag("add_generation_prompt", true);
        Map<String, Object> options = json.values("chat_template_kwargs");
        json.requireNoOthers();
        int[] prompt;
        try {
            prompt = template.encode(messages, generation, options, tokenizer);
        } catch (IllegalArgumentException e) {
            throw ApiException.badRequest("messages", e.getMessage());
        }
        builder.setPromptTokens(prompt);
        builder.optMaxNewTokens(
                (int)
                        (maxTokens == 0
                                ? Math.max(1, generator.maxLength() - prompt.length)
                                : maxTokens));
        return new TextCall(
                List.of(build(builder)),
                new OpenAiAnswer(true, streamed, usage, List.of(""), model));
    }

    private static ChatTemplate.Message message(JsonOptions json) {
        String role = json.text("role", "");
        if (role.equals("developer")) {
            role = "system";
        }
        if (!List.of("system", "user", "assistant").contains(role)) {
            throw json.wrong("role", "system, developer, user or assistant");
        }
        String content;
        if (json.isArray("content")) {
            StringBuilder text = new StringBuilder();
            for (JsonOptions part : json.objects("content")) {
                if (!part.text("type", "").equals("text")) {
                    throw part.wrong("type", "text");
                }
                text.append(part.text("text", ""));
                part.requireNoOthers();
            }
            content = text.toString();
        } else {
            content = json.text("content", null);
        }
        if (content == null) {
            throw json.wrong("content", "a string or an array of texts");
        }
        json.requireNoOthers();
        return new ChatTemplate.Message(role, content);
    }

    /**
     * Reads a request for a completion of one or more prompts.
     *
     * @param json the request, in UTF-8
     * @return the request
     * @throws ApiException if the request is not valid
     */
    public TextCall completion(byte[] json) {
        return completion(JsonOptions.parse(json));
    }

    private TextCall completion(JsonOptions json) {
        json.setDefaults(generator.samplingDefaults().values());
        checkModel(json);
        boolean streamed = json.flag("stream", false);
        boolean usage = usage(json, streamed);
        if (json.has("logprobs") || !json.text("suffix", "").isEmpty()) {
            throw json.wrong(json.has("logprobs") ? "logprobs" : "suffix", "left out");
        }
        boolean echoes = json.flag("echo", false);
        GenerationRequest.Builder builder = OpenAiOptions.read(json);
        builder.optMaxNewTokens(
                (int) json.integer("max_tokens", 1, Integer.MAX_VALUE, DEFAULT_COMPLETION));
        List<GenerationRequest> requests = new ArrayList<>();
        List<String> echoed = new ArrayList<>();
        JsonOptions prompts = json.prompts("prompt");
        for (String name : prompts.names()) {
            if (prompts.isArray(name)) {
                int[] tokens = prompts.integers(name);
                if (tokens.length == 0) {
                    throw prompts.wrong(name, "a non-empty text or array of tokens");
                }
                requests.add(build(builder.setPrompt(null).setPromptTokens(tokens)));
                echoed.add(echoes ? tokenizer.decode(tokens) : "");
            } else {
                String text = notEmpty(prompts, name);
                requests.add(build(builder.setPromptTokens((int[]) null).setPrompt(text)));
                echoed.add(echoes ? text : "");
            }
        }
        json.requireNoOthers();
        return new TextCall(requests, new OpenAiAnswer(false, streamed, usage, echoed, model));
    }

    private static String notEmpty(JsonOptions json, String name) {
        String text = json.text(name, "");
        if (text.isEmpty()) {
            throw json.wrong(name, "a non-empty text");
        }
        return text;
    }

    private static boolean usage(JsonOptions json, boolean streamed) {
        JsonOptions stream = json.object("stream_options");
        boolean usage = stream.flag("include_usage", false);
        stream.requireNoOthers();
        return usage && streamed;
    }

    private void checkModel(JsonOptions json) {
        String requested = json.text("model", model);
        if (!requested.equals(model)) {
            throw new ApiException(
                    404,
                    "not_found_error",
                    "model",
                    "unknown model '" + requested + "'; this server has '" + model + "'");
        }
    }

    /**
     * Reads a request in DJL Serving's schema.
     *
     * @param json the request, in UTF-8
     * @return the request
     * @throws ApiException if the request is not valid; the error has this schema, too
     */
    public TextCall invocation(byte[] json) {
        return invocation(parseInvocation(json));
    }

    private static JsonOptions parseInvocation(byte[] json) {
        try {
            return JsonOptions.parse(json);
        } catch (ApiException e) {
            throw e.forInvocation();
        }
    }

    private TextCall invocation(JsonOptions json) {
        try {
            return readInvocation(json);
        } catch (ApiException e) {
            throw e.forInvocation();
        }
    }

    private TextCall readInvocation(JsonOptions json) {
        boolean array = json.isArray("inputs");
        JsonOptions inputs = json.prompts("inputs");
        List<String> prompts = inputs.names().stream().map(name -> notEmpty(inputs, name)).toList();
        boolean streamed = json.flag("stream", false);
        if (streamed && array) {
            throw json.wrong(
                    "stream", "false if 'inputs' is an array; send a request for each input");
        }
        JsonOptions options = json.object("parameters");
        options.setDefaults(generator.samplingDefaults().values());
        boolean samples =
                options.flag(
                        "do_sample",
                        options.has("temperature") || options.has("top_k") || options.has("top_p"));
        double temperature = options.number("temperature", 0, 100, 1);
        GenerationRequest.Builder builder =
                GenerationRequest.builder()
                        .optTemperature(samples ? temperature : 0)
                        .optTopK(OpenAiOptions.topK(options))
                        .optTopP(options.number("top_p", Double.MIN_NORMAL, 1, 1))
                        .optRepetitionPenalty(
                                options.number("repetition_penalty", Double.MIN_NORMAL, 100, 1))
                        .optIgnoreEndOfText(options.flag("ignore_eos_token", false))
                        .optMaxNewTokens(
                                (int)
                                        options.integer(
                                                "max_new_tokens",
                                                1,
                                                Integer.MAX_VALUE,
                                                DEFAULT_INVOCATION));
        if (options.has("seed")) {
            builder.optSeed(options.integer("seed", Long.MIN_VALUE, Long.MAX_VALUE, 0));
        }
        String stops = options.has("stop") ? "stop" : "stop_sequences";
        builder.optStopStrings(OpenAiOptions.stops(options, stops));
        builder.optStopTokens(OpenAiOptions.stopTokens(options));
        if (options.flag("decoder_input_details", false)) {
            throw options.wrong(
                    "decoder_input_details",
                    "false; log probabilities of the prompt are not supported");
        }
        OpenAiOptions.requireDefaults(options);
        boolean details = options.flag("details", false);
        boolean echoes = options.flag("return_full_text", false);
        options.requireNoOthers();
        json.requireNoOthers();
        return new TextCall(
                prompts.stream().map(prompt -> build(builder.setPrompt(prompt))).toList(),
                new InvocationAnswer(streamed, details, echoes, prompts, array));
    }

    private static GenerationRequest build(GenerationRequest.Builder builder) {
        try {
            return builder.build();
        } catch (IllegalArgumentException e) {
            throw ApiException.badRequest(null, e.getMessage());
        }
    }
}
