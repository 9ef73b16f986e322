/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.llm.sampling;

import ai.djl.ndarray.NDArray;
import java.util.ArrayList;
import java.util.List;

/**
 * The scores of the next tokens of several sequences, which may still be computed. They stay on the
 * device until they are asked for; the best may be asked for when the model computes others
 * already, all of a sequence only before.
 */
public interface Logits {

    /**
     * What is chosen for a sequence.
     *
     * @param token the first token of the highest score, or the one that the ranks have drawn
     * @param score its score
     * @param drawn whether the ranks have drawn it
     * @param logSum the logarithm of the sum of the exponentials of all scores; not finite if they
     *     are not all numbers
     */
    record Best(int token, float score, boolean drawn, double logSum) {}

    /**
     * Waits until they are there, which all ranks do.
     *
     * @throws org.djlx.collectives.CollectiveException if a rank was missing
     */
    default void await() {}

    /** Returns how many sequences there are. */
    int count();

    /** Returns what is chosen by the scores of each sequence; waits until they are there. */
    List<Best> best();

    /** Returns a copy of all scores of a sequence; only if all were to be computed. */
    float[] all(int sequence);

    /**
     * Returns scores that are in an array.
     *
     * @param scores of shape (sequences, vocabulary), in float32; what is computed from them goes
     *     to their manager
     */
    static Logits of(NDArray scores) {
        return new Logits() {
            @Override
            public List<Best> best() {
                NDArray highest = scores.max(new int[] {1}, true);
                NDArray sums = scores.sub(highest).exp().sum(new int[] {1});
                long[] tokens = scores.argMax(1).toLongArray();
                float[] highestOf = highest.toFloatArray();
                float[] sumOf = sums.toFloatArray();
                List<Best> best = new ArrayList<>();
                for (int i = 0; i < tokens.length; i++) {
                    double logSum = highestOf[i] + Math.log(sumOf[i]);
                    best.add(new Best((int) tokens[i], highestOf[i], false, logSum));
                }
                return best;
            }

            @Override
            public float[] all(int sequence) {
                return scores.get(sequence).toFloatArray();
            }

            @Override
            public int count() {
                return Math.toIntExact(scores.getShape().get(0));
            }
        };
    }

    /** Returns the scores of some sequences, by their indices here. */
    default Logits inOrder(List<Integer> order) {
        return new Logits() {
            @Override
            public void await() {
                Logits.this.await();
            }

            @Override
            public int count() {
                return order.size();
            }

            @Override
            public List<Best> best() {
                List<Best> all = Logits.this.best();
                return order.stream().map(all::get).toList();
            }

            @Override
            public float[] all(int sequence) {
                return Logits.this.all(order.get(sequence));
            }
        };
    }

    /** Returns the scores of the sequences of all parts, in their order; computes nothing yet. */
    static Logits joined(List<Logits> parts) {
        if (parts.size() == 1) {
            return parts.get(0);
        }
        return new Logits() {
            @Override
            public void await() {
                parts.forEach(Logits::await);
            }

            @Override
            public List<Best> best() {
                return parts.stream().flatMap(part -> part.best().stream()).toList();
            }

            @Override
            public float[] all(int sequence) {
                int index = sequence;
                for (Logits part : parts) {
                    if (index < part.count()) {
                        return part.all(index);
                    }
                    index -= part.count();
                }
                throw new IndexOutOfBoundsException(sequence);
            }

            @Override
            public int count() {
                return parts.stream().mapToInt(Logits::count).sum();
            }
        };
    }
}
