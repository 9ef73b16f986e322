// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.nn;

import java.util.List;
import java.util.Set;

/**
 * Low-rank adaptation (Hu et al., 2021, <a
 * href="https://arxiv.org/abs/2106.09685">arXiv:2106.09685</a>): a projection with weight W
 * computes {@code x Wᵀ + scale (x Aᵀ) Bᵀ}. A of shape (rank, inputs) starts with random values, B
 * of shape (outputs, rank) with zeros.
 *
 * @param rank the number of rows of A, 1 or more
 * @param alpha scales the adapter, see {@link #scale}
 * @param targets the projections that have an adapter, of {@link #PROJECTIONS}
 * @param rankStabilized whether the scale falls with the root of the rank (rsLoRA: Kalajdzievski,
 *     2023, <a href="https://arxiv.org/abs/2312.03732">arXiv:2312.03732</a>)
 * @param dropout the part of an adapter's inputs that training sets to 0, at least 0 and below 1.
 *     Ranks draw different elements
 */
public record Lora(
        int rank, double alpha, Set<String> targets, boolean rankStabilized, double dropout) {

    /** The projections of a {@link ParallelTransformerBlock}, in order. */
    public static final List<String> PROJECTIONS =
            List.of("query", "key", "value", "output", "gate", "up", "down");

    /** Adapters without dropout, with the scale {@code alpha / rank}. */
    public Lora(int rank, double alpha, Set<String> targets) {
        this(rank, alpha, targets, false, 0);
    }

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
        if (!(dropout >= 0 && dropout < 1)) {
            throw new IllegalArgumentException(
                    "Lora: the dropout must be at least 0 and below 1, not " + dropout);
        }
        targets = Set.copyOf(targets);
    }

    /** {@return adapters of all projections, with an alpha of twice the rank} */
    public static Lora of(int rank) {
        return new Lora(rank, 2.0 * rank, Set.copyOf(PROJECTIONS));
    }

    /**
     * {@return the factor of the adapter's product: {@code alpha / rank}, or {@code alpha /
     * sqrt(rank)} if it is rank-stabilized}
     */
    public double scale() {
        return alpha / (rankStabilized ? Math.sqrt(rank) : rank);
    }
}
