// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.djlx.llm.model.LayerConfig;

/**
 * The tokens of one expert, and the weight of the expert's result for each. The host chooses them
 * by the router's logits.
 */
final class ExpertRouter {

    private final List<Integer> tokens = new ArrayList<>();
    private final List<Float> weights = new ArrayList<>();

    private ExpertRouter() {}

    /**
     * Chooses for each token the experts with the highest logits; among equal logits, those with
     * the lowest index. Returns the tokens of each expert that has some, without tokens whose
     * weight rounds to 0.
     *
     * @param logits of shape (tokens, experts)
     */
    static Map<Integer, ExpertRouter> route(LayerConfig.Experts experts, float[] logits) {
        int count = experts.count();
        Map<Integer, ExpertRouter> routes = new TreeMap<>();
        for (int token = 0; token < logits.length / count; token++) {
            float[] row = Arrays.copyOfRange(logits, token * count, (token + 1) * count);
            boolean[] taken = new boolean[count];
            int[] chosen = new int[experts.chosen()];
            for (int i = 0; i < chosen.length; i++) {
                chosen[i] = -1;
                for (int expert = 0; expert < count; expert++) {
                    if (!taken[expert] && (chosen[i] < 0 || row[expert] > row[chosen[i]])) {
                        chosen[i] = expert;
                    }
                }
                taken[chosen[i]] = true;
            }
            double sum = 0;
            for (int expert = 0; expert < count; expert++) {
                boolean counts = taken[expert] || !experts.normalizes();
                sum += counts ? Math.exp(row[expert] - row[chosen[0]]) : 0;
            }
            for (int expert : chosen) {
                float weight = (float) (Math.exp(row[expert] - row[chosen[0]]) / sum);
                if (weight != 0) {
                    ExpertRouter route = routes.computeIfAbsent(expert, e -> new ExpertRouter());
                    route.tokens.add(token);
                    route.weights.add(weight);
                }
            }
        }
        return routes;
    }

    long[] tokens() {
        return tokens.stream().mapToLong(Integer::longValue).toArray();
    }

    float[] weights() {
        float[] all = new float[weights.size()];
        for (int i = 0; i < all.length; i++) {
            all[i] = weights.get(i);
        }
        return all;
    }
}
