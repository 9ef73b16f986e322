/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.llm.sampling;

import java.util.ArrayList;
import java.util.List;

/** Chooses the next tokens of several sequences from the model's scores. */
public final class LogitsReader {

    private LogitsReader() {}

    /**
     * Chooses a token for each sequence. The scores of those that take the most probable one, or
     * for which the ranks have drawn one, stay where they are; others are copied to the host.
     *
     * @return the choices; null for a sequence whose scores are not all numbers
     */
    public static List<Sampler.Choice> choose(Logits scores, List<Sampler> choosers) {
        List<Sampler.Choice> choices = new ArrayList<>();
        for (Logits.Best best : scores.best()) {
            int sequence = choices.size();
            Sampler chooser = choosers.get(sequence);
            if (!Double.isFinite(best.logSum())) {
                choices.add(null);
            } else if (chooser.isGreedy() || best.drawn()) {
                float logProbability = (float) (best.score() - best.logSum());
                choices.add(new Sampler.Choice(best.token(), logProbability));
            } else {
                choices.add(chooser.choose(scores.all(sequence), best.logSum()));
            }
        }
        return choices;
    }
}
