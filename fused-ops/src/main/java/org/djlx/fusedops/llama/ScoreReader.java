/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.llama;

import ai.djl.ndarray.NDArray;
import java.util.ArrayList;
import java.util.List;

/** Chooses the next tokens of several sequences from the model's scores. */
final class ScoreReader {

    private ScoreReader() {}

    /**
     * Chooses a token for each sequence. The scores of those that take the most probable one stay
     * where they are; others are copied to the host.
     *
     * @param scores of shape (sequences, vocabulary), in float32; what is computed from them goes
     *     to their manager
     * @return the choices; null for a sequence whose scores are not all numbers
     */
    static List<TokenChooser.Choice> choose(NDArray scores, List<TokenChooser> choosers) {
        NDArray highest = scores.max(new int[] {1}, true);
        NDArray sums = scores.sub(highest).exp().sum(new int[] {1});
        long[] best = scores.argMax(1).toLongArray();
        float[] highestOf = highest.toFloatArray();
        float[] sumOf = sums.toFloatArray();
        List<TokenChooser.Choice> choices = new ArrayList<>();
        for (int i = 0; i < best.length; i++) {
            double logSum = highestOf[i] + Math.log(sumOf[i]);
            TokenChooser chooser = choosers.get(i);
            if (!Double.isFinite(logSum)) {
                choices.add(null);
            } else if (chooser.isGreedy()) {
                choices.add(
                        new TokenChooser.Choice((int) best[i], (float) (highestOf[i] - logSum)));
            } else {
                choices.add(chooser.choose(scores.get(i).toFloatArray(), logSum));
            }
        }
        return choices;
    }
}
