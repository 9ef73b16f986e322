// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import java.util.List;
import org.djlx.llm.GenerationRequest;
import org.djlx.llm.TextGenerator;
import org.djlx.llm.text.ContextLengthException;
import org.djlx.nativeops.host.Required;

/**
 * A parsed API request: a generation request for each choice, and the format of the answer. {@code
 * maxTokensName} is the API's name of the number of new tokens, for messages.
 */
public record TextCall(
        List<GenerationRequest> requests, AnswerFormat format, String maxTokensName) {

    /**
     * Submits the generation requests: all or none; throws as {@link TextGenerator#submitAll} does,
     * but an {@link ApiException} if a prompt and its new tokens are too long.
     */
    public TextAnswer submit(TextGenerator generator) {
        Required.argument("the generator", generator);
        try {
            return new TextAnswer(format, generator.submitAll(requests));
        } catch (ContextLengthException e) {
            throw format.refusal(TextApi.tooLong(e, null, maxTokensName));
        }
    }
}
