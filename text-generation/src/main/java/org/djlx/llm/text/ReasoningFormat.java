// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text;

import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import org.djlx.llm.sampling.Grammar;
import org.djlx.nativeops.host.Required;

/** How a model writes its reasoning before the answer. */
public enum ReasoningFormat {
    /** Qwen 3 and most others: {@code <think>…</think>}, or an answer without reasoning. */
    THINK("<think>", "</think>"),
    /** DeepSeek R1: as {@link #THINK}, but all text is reasoning until {@code </think>}. */
    DEEPSEEK_R1("<think>", "</think>"),
    /** Seed-OSS: {@code <seed:think>…</seed:think>}. */
    SEED_OSS("<seed:think>", "</seed:think>"),
    /** Mistral: {@code [THINK]…[/THINK]}, which are special tokens. */
    MISTRAL("[THINK]", "[/THINK]"),
    /**
     * GPT-OSS: messages in channels, {@code <|channel|>analysis<|message|>…<|end|>}, then {@code
     * <|start|>assistant<|channel|>final<|message|>…}; all markers are special tokens.
     */
    CHANNELS(ChannelStream.CHANNEL, ChannelStream.MESSAGE);

    /** What the text after a prompt begins with. */
    public enum Start {
        /** The prompt ends within the reasoning. */
        REASONING,
        /** The prompt has ended the reasoning. */
        ANSWER,
        /** The model decides. */
        EITHER
    }

    /** The names of vLLM's parsers. */
    private static final Map<String, ReasoningFormat> NAMES =
            new TreeMap<>(
                    Map.of(
                            "qwen3", THINK,
                            "glm45", THINK,
                            "olmo3", THINK,
                            "hunyuan_a13b", THINK,
                            "deepseek_v3", THINK,
                            "deepseek_r1", DEEPSEEK_R1,
                            "seed_oss", SEED_OSS,
                            "mistral", MISTRAL,
                            "openai_gptoss", CHANNELS));

    private final String open;
    private final String close;

    ReasoningFormat(String open, String close) {
        this.open = open;
        this.close = close;
    }

    /** {@return the format that a chat template knows; empty if it knows no reasoning} */
    public static Optional<ReasoningFormat> of(ChatTemplate template) {
        Required.argument("the chat template", template);
        if (template.contains("<|channel|>analysis")) {
            return Optional.of(CHANNELS);
        }
        return List.of(THINK, SEED_OSS, MISTRAL).stream()
                .filter(format -> template.contains(format.close) || template.contains(format.open))
                .findFirst();
    }

    /** {@return the names of the formats, for {@link #named}} */
    public static Set<String> names() {
        return NAMES.keySet();
    }

    /**
     * Finds a format by the name that vLLM's option {@code reasoning_parser} has for it.
     *
     * @throws IllegalArgumentException if there is no such format
     */
    public static ReasoningFormat named(String name) {
        if (name != null && NAMES.containsKey(name)) {
            return NAMES.get(name);
        }
        throw new IllegalArgumentException(
                "unknown format of reasoning '" + name + "'; known are " + NAMES.keySet());
    }

    /** {@return the texts around the parts of an answer; special tokens in some vocabularies} */
    public List<String> markers() {
        return this == CHANNELS ? ChannelStream.MARKERS : List.of(open, close);
    }

    /** Returns what follows a prompt, which ends with this text. */
    public Start start(String promptEnd) {
        String end = promptEnd.strip();
        if (this == CHANNELS) {
            return Start.EITHER;
        }
        if (end.endsWith(close)) {
            return Start.ANSWER;
        }
        return end.endsWith(open) || this == DEEPSEEK_R1 ? Start.REASONING : Start.EITHER;
    }

    /**
     * Returns the grammar of texts whose answer, after the reasoning, is of a grammar.
     *
     * @throws IllegalArgumentException if the format is {@link #CHANNELS} or {@link #MISTRAL}, and
     *     there may be reasoning: its markers are special tokens, which no grammar allows
     */
    public Grammar grammar(Start start, Grammar answer) {
        if (start == Start.ANSWER) {
            return answer;
        }
        Required.check(
                this != CHANNELS && this != MISTRAL,
                "no grammar after the reasoning of this model, whose markers are"
                        + " special tokens");
        String ending = "[\\s\\S]*" + close;
        Grammar reasoning = Grammar.regex(ending, ending + "[\\s\\S]+");
        Grammar space = Grammar.regex("\n{0,2}");
        if (start == Start.REASONING) {
            return Grammar.sequence(reasoning, space, answer);
        }
        Grammar begin = Grammar.regex("\n?" + open);
        return Grammar.anyOf(List.of(answer, Grammar.sequence(begin, reasoning, space, answer)));
    }

    /**
     * Returns a stream that divides the text after a prompt; {@code tools} finds the calls of tools
     * in its content, null if there are none.
     */
    public AnswerStream newStream(Start start, ToolCallStream tools) {
        return this == CHANNELS
                ? new ChannelStream()
                : new ReasoningStream(open, close, start, tools);
    }
}
