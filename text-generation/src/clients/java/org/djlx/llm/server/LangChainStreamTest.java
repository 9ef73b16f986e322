// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import static org.mockito.ArgumentMatchers.any;
import static org.mockito.ArgumentMatchers.argThat;
import static org.mockito.Mockito.atLeast;

import dev.langchain4j.model.chat.StreamingChatModel;
import dev.langchain4j.model.chat.common.AbstractStreamingChatModelIT;
import dev.langchain4j.model.chat.listener.ChatModelListener;
import dev.langchain4j.model.chat.request.ChatRequestParameters;
import dev.langchain4j.model.chat.response.StreamingChatResponseHandler;
import java.util.List;
import org.djlx.llm.langchain4j.TextChatModel;
import org.djlx.llm.text.ChatTemplate;
import org.djlx.llm.text.ToolFormat;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Timeout;
import org.mockito.InOrder;

/** LangChain4j's own tests of streaming chat models; see {@link LangChainChatTest}. */
@Timeout(120)
@Tag("clients")
class LangChainStreamTest extends AbstractStreamingChatModelIT {

    private static final FakeGenerator GENERATOR =
            new FakeGenerator(10_000, LangChainChatTest::answer);
    private static final ChatRequestParameters ANOTHER =
            ChatRequestParameters.builder().modelName("another").build();

    @AfterAll
    static void close() {
        GENERATOR.close();
    }

    private static StreamingChatModel model(
            ChatRequestParameters defaults, List<ChatModelListener> listeners) {
        org.djlx.llm.ChatModel chat =
                new org.djlx.llm.ChatModel(
                        "tiny", GENERATOR, ChatTemplate.PLAIN, ToolFormat.named("hermes"), null);
        return new TextChatModel(chat, defaults, listeners).streaming();
    }

    @Override
    protected List<StreamingChatModel> models() {
        return List.of(model(ANOTHER, List.of()));
    }

    @Override
    public StreamingChatModel createModelWith(ChatModelListener listener) {
        return model(ANOTHER, List.of(listener));
    }

    @Override
    protected StreamingChatModel createModelWith(ChatRequestParameters parameters) {
        return model(parameters, List.of());
    }

    @Override
    protected ChatRequestParameters createIntegrationSpecificParameters(int maxOutputTokens) {
        return ChatRequestParameters.builder().maxOutputTokens(maxOutputTokens).build();
    }

    private static void verify(
            StreamingChatResponseHandler handler,
            InOrder order,
            int index,
            String id,
            String name) {
        String arguments =
                name.equals("getWeather") ? "{\"city\":\"Munich\"}" : "{\"country\":\"France\"}";
        order.verify(handler, atLeast(1))
                .onPartialToolCall(
                        argThat(
                                part ->
                                        part.index() == index
                                                && part.id().equals(id)
                                                && part.name().equals(name)),
                        any());
        order.verify(handler).onCompleteToolCall(complete(index, id, name, arguments));
    }

    @Override
    protected void verifyToolCallbacks(
            StreamingChatResponseHandler handler, InOrder order, String id) {
        verify(handler, order, 0, id, "getWeather");
    }

    @Override
    protected void verifyToolCallbacks(
            StreamingChatResponseHandler handler, InOrder order, StreamingChatModel model) {
        order.verify(handler, atLeast(1)).onPartialToolCall(any(), any());
        order.verify(handler)
                .onCompleteToolCall(
                        argThat(
                                call ->
                                        call.toolExecutionRequest()
                                                .name()
                                                .equals("get_current_time")));
    }

    @Override
    protected void verifyToolCallbacks(
            StreamingChatResponseHandler handler, InOrder order, String first, String second) {
        verify(handler, order, 0, first, "getWeather");
        verify(handler, order, 1, second, "getTime");
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
