// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.nn;

import java.util.List;
import java.util.Set;

/**
 * Low-rank adaptation (Hu et al., 2021, <a
 * href="https://arxiv.org/abs/2106.09685">arXiv:2106.09685</a>): a projection with weight W
 * computes {@code x Wᵀ + (alpha / rank) (x Aᵀ) Bᵀ}. A of shape (rank, inputs) starts with random
 * values, B of shape (outputs, rank) with zeros.
 *
 * @param rank the number of rows of A, 1 or more
 * @param alpha scales the adapter: its product is multiplied by {@code alpha / rank}
 * @param targets the projections that have an adapter, of {@link #PROJECTIONS}
 */
public record Lora(int rank, double alpha, Set<String> targets) {

    /** The projections of a {@link ParallelTransformerBlock}, in order. */
    public static final List<String> PROJECTIONS =
            List.of("query", "key", "value", "output", "gate", "up", "down");

    /**
     * Throws an {@link IllegalArgumentException} if a value is out of range, or a target is
     * unknown.
     */
    public Lora {
        if (rank < 1 || !Double.isFinite(alpha)) {
            throw new IllegalArgumentException(
                    "Lora: the rank must be 1 or more and alpha finite, not %d and %s"
                            .formatted(rank, alpha));
        }
        if (targets == null || targets.isEmpty() || !PROJECTIONS.containsAll(targets)) {
            throw new IllegalArgumentException(
                    "Lora: the targets must be some of %s, not %s".formatted(PROJECTIONS, targets));
        }
        targets = Set.copyOf(targets);
    }

    /** {@return adapters of all projections, with an alpha of twice the rank} */
    public static Lora of(int rank) {
        return new Lora(rank, 2.0 * rank, Set.copyOf(PROJECTIONS));
    }

    /** {@return the factor of the adapter's product, {@code alpha / rank}} */
    public double scale() {
        return alpha / rank;
    }
}
