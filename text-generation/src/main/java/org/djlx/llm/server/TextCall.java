// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import java.util.List;
import org.djlx.llm.GenerationRequest;
import org.djlx.llm.TextGenerator;
import org.djlx.llm.text.ContextLengthException;

/**
 * A parsed API request.
 *
 * @param requests a generation request for each choice
 * @param format formats the answer
 * @param maxTokensName the API's name of the number of new tokens, for messages
 */
public record TextCall(
        List<GenerationRequest> requests, AnswerFormat format, String maxTokensName) {

    /**
     * Submits the generation requests: all or none.
     *
     * @return the answer
     * @throws ApiException if a prompt and its new tokens are too long
     * @throws IllegalArgumentException if the generator is null, or the model cannot serve a
     *     request; see {@link TextGenerator#submitAll}
     * @throws java.util.concurrent.RejectedExecutionException if the queue is full
     * @throws IllegalStateException if the generator is closed or has failed
     */
    public TextAnswer submit(TextGenerator generator) {
        if (generator == null) {
            throw new IllegalArgumentException("the generator is null");
        }
        try {
            return new TextAnswer(format, generator.submitAll(requests));
        } catch (ContextLengthException e) {
            throw format.refusal(TextApi.tooLong(e, null, maxTokensName));
        }
    }
}
