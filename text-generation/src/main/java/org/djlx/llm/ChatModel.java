// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.CancellationException;
import java.util.function.Consumer;
import org.djlx.llm.engine.TextEngine;
import org.djlx.llm.model.SamplingDefaults;
import org.djlx.llm.sampling.Grammar;
import org.djlx.llm.text.AnswerStream.Part;
import org.djlx.llm.text.ChatFormat;
import org.djlx.llm.text.ChatTemplate;
import org.djlx.llm.text.ReasoningFormat;
import org.djlx.llm.text.ToolFormat;

/**
 * Answers chats: with a text, with its parts while they are generated, or with a record of a type
 * such as {@code Review} below. Thread-safe.
 *
 * <pre>{@code
 * try (ChatModel model = ChatModel.of("Qwen/Qwen3-0.6B")) {
 *     System.out.println(model.chat("Hello"));
 *     model.chat(ChatRequest.of("Tell a story"), part -> System.out.print(part.content()));
 *     Review review = model.chat(ChatRequest.of("Review: I would read it again."), Review.class);
 * }
 * }</pre>
 *
 * <ul>
 *   <li>Defaults, which {@link ChatRequest.Builder#optGeneration} changes: the sampling parameters
 *       of {@code generation_config.json}, and as many new tokens as fit the context.
 *   <li>The methods {@code chat} block until the answer is complete. Interrupting their thread
 *       cancels the answer. They throw the exceptions of {@link #submit}, a {@link
 *       CancellationException} if the generator is closed, and an {@code EngineException} if it
 *       fails.
 * </ul>
 */
public final class ChatModel implements AutoCloseable {

    private final String name;
    private final TextGenerator generator;
    private final ChatFormat format;

    /**
     * Creates a model from a generator, which {@link #close} closes.
     *
     * @param name the model's name in the responses of LangChain4j and Spring AI
     * @param tools how the model writes tool calls; null to find it from the template
     * @param reasoning how it writes its reasoning; null to find it from the template
     * @throws IllegalArgumentException if the generator has no tokenizer
     */
    public ChatModel(
            String name,
            TextGenerator generator,
            ChatTemplate template,
            ToolFormat tools,
            ReasoningFormat reasoning) {
        if (name == null || generator == null || template == null) {
            throw new IllegalArgumentException("the name, generator or chat template is null");
        }
        this.name = name;
        this.generator = generator;
        format =
                new ChatFormat(
                        generator
                                .tokenizer()
                                .orElseThrow(
                                        () ->
                                                new IllegalArgumentException(
                                                        "the model " + name + " has no tokenizer")),
                        template,
                        tools,
                        reasoning);
    }

    /**
     * Loads a model on the CPU, as {@link TextGenerator#of}.
     *
     * @param model a directory, or a name on a Hugging Face hub, such as Qwen/Qwen3-0.6B
     */
    public static ChatModel of(String model) throws IOException {
        TextEngine engine = TextEngine.builder().setModel(model).build();
        try {
            return of(Files.exists(Path.of(model)) ? name(engine) : model, engine);
        } catch (Throwable e) {
            engine.close();
            throw e;
        }
    }

    /**
     * Creates a model from an engine, which {@link #close} closes, with the chat template of its
     * directory.
     */
    public static ChatModel of(TextEngine engine) throws IOException {
        return of(name(engine), engine);
    }

    private static ChatModel of(String name, TextEngine engine) throws IOException {
        return new ChatModel(name, engine, ChatTemplate.of(engine.directory()), null, null);
    }

    private static String name(TextEngine engine) {
        return engine.directory().toAbsolutePath().normalize().getFileName().toString();
    }

    public String name() {
        return name;
    }

    public TextGenerator generator() {
        return generator;
    }

    /** {@return the answer to a message, without its reasoning} */
    public String chat(String message) throws InterruptedException {
        return chat(ChatRequest.of(message)).content();
    }

    public ChatAnswer chat(ChatRequest request) throws InterruptedException {
        return chat(request, part -> {});
    }

    /**
     * Passes the parts of an answer to {@code listener} on the calling thread, while they are
     * generated. If the listener throws, the answer is cancelled.
     *
     * @return the whole answer
     */
    public ChatAnswer chat(ChatRequest request, Consumer<Part> listener)
            throws InterruptedException {
        ChatGeneration generation = submit(request);
        try {
            List<Part> parts;
            while ((parts = generation.next()) != null) {
                parts.forEach(listener);
            }
            return generation.answer();
        } finally {
            generation.cancel(); // Does nothing after a complete answer.
        }
    }

    /**
     * Answers with a record. The record's JSON schema constrains the answer: {@link ChatAnswer#as}.
     *
     * @throws IllegalArgumentException if the type is not supported
     * @throws IllegalStateException if the answer is incomplete, for example because of its maximum
     *     length
     */
    public <T extends Record> T chat(ChatRequest request, Class<T> type)
            throws InterruptedException {
        Grammar grammar = Grammar.jsonSchema(RecordSchema.of(type));
        return chat(request.with(builder -> builder.optGrammar(grammar))).as(type);
    }

    /**
     * Submits a request. Returns immediately.
     *
     * @throws IllegalArgumentException if the template refuses the messages, the model calls no
     *     tools, or a parameter is out of range; a {@link org.djlx.llm.text.ContextLengthException}
     *     if the chat and its answer are too long
     * @throws java.util.concurrent.RejectedExecutionException if the queue is full
     * @throws IllegalStateException if the generator is closed or has failed
     */
    public ChatGeneration submit(ChatRequest request) {
        int[] prompt =
                format.encode(
                        request.messages,
                        true,
                        request.variables,
                        request.tools,
                        generator.maxLength());
        SamplingDefaults defaults = generator.samplingDefaults();
        GenerationRequest.Builder builder =
                GenerationRequest.builder()
                        .optMaxTokens(Math.max(1, generator.maxLength() - prompt.length))
                        .optTemperature(defaults.temperature())
                        .optTopK(defaults.topK())
                        .optTopP(defaults.topP())
                        .optMinP(defaults.minP())
                        .optRepetitionPenalty(defaults.repetitionPenalty());
        request.options.accept(builder);
        builder.setPrompt(null).setPromptTokens(prompt);
        Grammar content = builder.build().grammar().orElse(null);
        Grammar answer = format.grammar(request.tools, content);
        builder.optGrammar(format.grammar(prompt, request.tools, answer));
        return new ChatGeneration(
                generator.submit(builder.build()), format.newParts(prompt, request.tools, true));
    }

    /** Cancels all answers and closes the generator. */
    @Override
    public void close() {
        generator.close();
    }
}
