/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.llm.api;

import java.util.List;
import org.djlx.fusedops.llm.GenerationRequest;
import org.djlx.fusedops.llm.TextGenerator;

/**
 * A request to generate text.
 *
 * @param requests what to generate, for each of its prompts
 * @param format how the answer is worded
 */
public record TextCall(List<GenerationRequest> requests, AnswerFormat format) {

    /**
     * Has a generator accept all of it, or nothing.
     *
     * @param generator the generator
     * @return the answer, which comes from now on
     * @throws IllegalArgumentException if the generator is null, or its model cannot do it; this
     *     and the following as {@link TextGenerator#submitAll} says
     * @throws java.util.concurrent.RejectedExecutionException if too many requests wait already
     * @throws IllegalStateException if the generator is closed, or its model is lost
     */
    public TextAnswer submit(TextGenerator generator) {
        if (generator == null) {
            throw new IllegalArgumentException("the generator is null");
        }
        return new TextAnswer(format, generator.submitAll(requests));
    }
}
