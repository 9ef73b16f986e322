// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text;

import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.stream.IntStream;
import org.djlx.llm.sampling.Grammar;
import org.djlx.nativeops.host.Required;

/**
 * How a model reads chats and writes answers: its chat template, and its formats of tool calls and
 * reasoning. Immutable.
 */
public final class ChatFormat {

    private static final int END = 32; // tokens at the end of a prompt that may hold a marker

    private final TextTokenizer tokenizer;
    private final ChatTemplate template;
    private final Optional<ToolFormat> tools;
    private final Optional<ReasoningFormat> reasoning;
    private final Map<Integer, String> markers = new HashMap<>(); // by token, of both formats

    /**
     * Creates a format. {@code tools} and {@code reasoning} may be null: they are then found from
     * the template.
     */
    public ChatFormat(
            TextTokenizer tokenizer,
            ChatTemplate template,
            ToolFormat tools,
            ReasoningFormat reasoning) {
        this.tokenizer = Required.argument("the tokenizer", tokenizer);
        this.template = Required.argument("the chat template", template);
        this.tools = Optional.ofNullable(tools).or(() -> ToolFormat.of(template));
        this.reasoning = Optional.ofNullable(reasoning).or(() -> ReasoningFormat.of(template));
        this.tools.ifPresent(format -> addMarker(format.marker()));
        this.reasoning.ifPresent(format -> format.markers().forEach(this::addMarker));
    }

    /** Keeps the text of a marker that is a special token, which detokenizing leaves out. */
    private void addMarker(String text) {
        boolean isSpecial = tokenizer.specialTokens().contains(text);
        int[] tokens = isSpecial ? tokenizer.encode(text, false) : new int[0];
        if (tokens.length == 1) {
            markers.put(tokens[0], text);
        }
    }

    public ChatTemplate template() {
        return template;
    }

    /** {@return how the model writes calls of tools; empty if it calls none} */
    public Optional<ToolFormat> tools() {
        return tools;
    }

    /** {@return how the model writes its reasoning; empty if it has none} */
    public Optional<ReasoningFormat> reasoning() {
        return reasoning;
    }

    /**
     * Encodes a chat as a prompt, as {@link ChatTemplate#encode}; {@code tools} is null if the
     * model may call none.
     */
    public int[] encode(
            List<ChatTemplate.Message> messages,
            boolean addGenerationPrompt,
            Map<String, Object> variables,
            ChatTools tools,
            int maxLength) {
        Map<String, Object> all = new HashMap<>(variables);
        if (tools != null) {
            all.put("tools", tools.declarations());
        }
        int[] prompt = template.encode(messages, addGenerationPrompt, all, tokenizer, maxLength);
        if (tools == null || !tools.isForced()) {
            return prompt;
        }
        int[] suffix = tokenizer.encode(toolFormat().promptSuffix(), false);
        return IntStream.concat(Arrays.stream(prompt), Arrays.stream(suffix)).toArray();
    }

    private ToolFormat toolFormat() {
        return tools.orElseThrow(
                () ->
                        new IllegalArgumentException(
                                "this model has no known format of tool calls; name one of "
                                        + ToolFormat.names()
                                        + " when you load it"));
    }

    /** {@return the grammar of calls and contents; {@code content} is null if these are free} */
    public Grammar grammar(ChatTools tools, Grammar content) {
        return tools == null ? content : tools.grammar(toolFormat(), content);
    }

    /**
     * {@return the grammar of whole answers, with their reasoning; null if they are free}
     *
     * @param answer that of what follows the reasoning; null if it is free
     * @throws IllegalArgumentException as {@link ReasoningFormat#grammar}
     */
    public Grammar grammar(int[] prompt, ChatTools tools, Grammar answer) {
        return reasoning.isEmpty() || answer == null
                ? answer
                : reasoning.get().grammar(start(reasoning.get(), prompt, tools), answer);
    }

    /** {@return parts for the answer to a prompt} */
    public AnswerParts newParts(int[] prompt, ChatTools tools, boolean includesReasoning) {
        ToolCallStream calls = tools == null ? null : tools.newStream(toolFormat());
        AnswerStream stream =
                reasoning
                        .<AnswerStream>map(
                                format -> format.newStream(start(format, prompt, tools), calls))
                        .orElse(calls);
        return new AnswerParts(markers, includesReasoning, stream);
    }

    private ReasoningFormat.Start start(ReasoningFormat reasoning, int[] prompt, ChatTools tools) {
        boolean isCall =
                tools != null && tools.isForced() && !toolFormat().promptSuffix().isEmpty();
        return isCall ? ReasoningFormat.Start.ANSWER : reasoning.start(end(prompt));
    }

    /** Returns the end of a prompt as text, with the markers that detokenizing leaves out. */
    private String end(int[] prompt) {
        StringBuilder text = new StringBuilder();
        for (int i = Math.max(0, prompt.length - END); i < prompt.length; i++) {
            String marker = markers.get(prompt[i]);
            text.append(marker == null ? tokenizer.decode(new int[] {prompt[i]}) : marker);
        }
        return text.toString();
    }
}
