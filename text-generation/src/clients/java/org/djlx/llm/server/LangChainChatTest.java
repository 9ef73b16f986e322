// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import dev.langchain4j.model.chat.ChatModel;
import dev.langchain4j.model.chat.common.AbstractChatModelIT;
import dev.langchain4j.model.chat.request.ChatRequestParameters;
import java.util.ArrayList;
import java.util.List;
import org.djlx.llm.GenerationRequest;
import org.djlx.llm.langchain4j.TextChatModel;
import org.djlx.llm.text.ChatTemplate;
import org.djlx.llm.text.ToolFormat;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Timeout;

/**
 * LangChain4j's own tests of chat models. They ask for facts and for calls of tools, which a model
 * of random weights cannot give, so the generator has their answers. Images are not supported.
 */
@Timeout(120)
@Tag("clients")
class LangChainChatTest extends AbstractChatModelIT {

    private static final List<FakeGenerator> GENERATORS = new ArrayList<>();

    @AfterAll
    static void close() {
        GENERATORS.forEach(FakeGenerator::close);
    }

    private static String call(String name, String arguments) {
        return "<tool_call>\n{\"name\": \"%s\", \"arguments\": %s}\n</tool_call>"
                .formatted(name, arguments);
    }

    /** Returns the answer to a question of the tests. */
    static String answer(GenerationRequest request) {
        int[] tokens = request.promptTokens().orElseThrow();
        String prompt = new String(tokens, 0, tokens.length);
        boolean json = request.grammar().isPresent();
        if (prompt.contains("\ntool: ")) {
            return json ? "{\"weather\": \"sunny\"}" : "It is sunny. 10:14 there, and 14:35 here.";
        }
        if (prompt.contains("time in France")) {
            return call("getWeather", "{\"city\":\"Munich\"}")
                    + "\n"
                    + call("getTime", "{\"country\":\"France\"}");
        }
        if (prompt.contains("in Munich")) {
            return call("getWeather", "{\"city\":\"Munich\"}");
        }
        if (prompt.contains("time now")) {
            return call("get_current_time", "{}");
        }
        if (prompt.contains("capital of Germany")) {
            return json ? "{\"city\": \"Berlin\"}" : "The capital is Berlin. 2 + 2 is 4.";
        }
        if (prompt.contains("I love you")) {
            return "Ich liebe dich";
        }
        return prompt.contains("color?") ? "green" : "Hello World. ".repeat(20);
    }

    /** Returns a model with a generator of its own: JUnit closes models that are arguments. */
    static TextChatModel model(ChatRequestParameters defaults) {
        FakeGenerator generator = new FakeGenerator(10_000, LangChainChatTest::answer);
        GENERATORS.add(generator);
        org.djlx.llm.ChatModel chat =
                new org.djlx.llm.ChatModel(
                        "tiny", generator, ChatTemplate.PLAIN, ToolFormat.named("hermes"), null);
        return new TextChatModel(chat, defaults, List.of());
    }

    @Override
    protected List<ChatModel> models() {
        return List.of(model(ChatRequestParameters.builder().modelName("another").build()));
    }

    @Override
    protected ChatModel createModelWith(ChatRequestParameters parameters) {
        return model(parameters);
    }

    @Override
    protected ChatRequestParameters createIntegrationSpecificParameters(int maxOutputTokens) {
        return ChatRequestParameters.builder().maxOutputTokens(maxOutputTokens).build();
    }

    @Override
    protected String customModelName() {
        return "tiny";
    }

    @Override
    protected boolean supportsSingleImageInputAsBase64EncodedString() {
        return false;
    }

    @Override
    protected boolean supportsMultipleImageInputsAsBase64EncodedStrings() {
        return false;
    }

    @Override
    protected boolean supportsSingleImageInputAsPublicURL() {
        return false;
    }

    @Override
    protected boolean supportsMultipleImageInputsAsPublicURLs() {
        return false;
    }
}
