// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm;

import java.util.List;
import org.djlx.llm.text.ChatTemplate.Message;
import org.djlx.llm.text.ToolCall;

/**
 * The answer of a {@link ChatModel}.
 *
 * @param content the text; empty if the answer only calls tools
 * @param reasoning what the model thought before; empty if the model does not reason
 * @param calls the calls of tools, whose results the next request sends back
 */
public record ChatAnswer(
        String content,
        String reasoning,
        List<ToolCall> calls,
        FinishReason finishReason,
        int promptTokens,
        int generatedTokens) {

    /**
     * {@return the answer as a message, for the next request of the chat}
     *
     * @throws IllegalArgumentException if the answer was cut within a call
     */
    public Message message() {
        String text = content.isEmpty() && !calls.isEmpty() ? null : content;
        return Message.assistant(text, reasoning.isEmpty() ? null : reasoning, calls);
    }

    /**
     * {@return the content, which is JSON, as a record or another class that Gson can create}
     *
     * @throws IllegalStateException if the answer was cut
     * @throws com.google.gson.JsonParseException if it has other types
     */
    public <T> T as(Class<T> type) {
        if (finishReason == FinishReason.LENGTH) {
            throw new IllegalStateException(
                    ("the answer was cut after %d tokens and is no whole %s: allow more, by"
                         + " optMaxTokens or a longer context; the answer begins: %.200s")
                            .formatted(generatedTokens, type.getSimpleName(), content));
        }
        return RecordSchema.GSON.fromJson(content, type);
    }
}
