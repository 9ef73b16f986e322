// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.List;
import java.util.Map;
import java.util.Set;
import org.djlx.llm.model.LayerConfig;
import org.junit.jupiter.api.Test;

class ExpertRouterTest {

    @Test
    void chooseExpertsByScore() {
        float[] scores = {1, 3, 2, 0, 5, 5, 5, -1};
        LayerConfig.Experts experts = new LayerConfig.Experts(4, 2, true);
        Map<Integer, ExpertRouter> routes = ExpertRouter.route(experts, scores);
        assertEquals(Set.of(0, 1, 2), routes.keySet());
        check(routes.get(0), List.of(1), 0.5); // of equal scores the first ones
        double first = Math.exp(3) / (Math.exp(3) + Math.exp(2));
        check(routes.get(1), List.of(0, 1), first, 0.5);
        check(routes.get(2), List.of(0), 1 - first);
        routes = ExpertRouter.route(new LayerConfig.Experts(4, 2, false), scores);
        double sum = Math.exp(1) + Math.exp(3) + Math.exp(2) + 1;
        double equal = Math.exp(5) / (3 * Math.exp(5) + Math.exp(-1));
        check(routes.get(1), List.of(0, 1), Math.exp(3) / sum, equal);
    }

    private static void check(ExpertRouter route, List<Integer> tokens, double... weights) {
        assertEquals(tokens.size(), route.tokens().length);
        for (int i = 0; i < weights.length; i++) {
            assertEquals(tokens.get(i), (int) route.tokens()[i]);
            assertEquals(weights[i], route.weights()[i], 1e-6);
        }
    }
}
