// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

import static org.djlx.nativeops.host.Required.check;

/**
 * What one layer computes: attention, then an MLP, each added to the residual stream.
 *
 * @param norms what is normalised
 */
public record LayerConfig(Attention attention, Mlp mlp, Norms norms) {

    LayerConfig(Attention attention, Mlp mlp) {
        this(attention, mlp, Norms.INPUTS);
    }

    /** {@return a layer as in Llama, without biases} */
    public static LayerConfig llama(Rope rope, int headSize, int intermediateSize) {
        Mlp mlp = new Mlp(intermediateSize, Activation.SILU, false, null);
        return new LayerConfig(Attention.of(rope, headSize, false), mlp);
    }

    /** {@return this layer with experts in place of its MLP} */
    public LayerConfig withExperts(int intermediateSize, Experts experts) {
        Mlp mixture = new Mlp(intermediateSize, mlp.activation, mlp.bias, experts);
        return new LayerConfig(attention, mixture, norms);
    }

    /** What a layer normalises by an RMSNorm. */
    public enum Norms {
        /** What attention and MLP read. */
        INPUTS,
        /** The results of attention and MLP, before they are added to the residual stream. */
        RESULTS,
        /** Both. */
        INPUTS_AND_RESULTS
    }

    /** What an RMSNorm of queries, and one of keys, spans; before the rotation. */
    public enum HeadNorms {
        /** There are no such norms. */
        NONE,
        /** Each head; all heads have the same weights. */
        EACH_HEAD,
        /** All heads of all ranks. */
        ALL_HEADS
    }

    /** The function that an MLP applies to its gate. */
    public enum Activation {
        /** {@code x sigmoid(x)}. */
        SILU,
        /** GELU in its approximation by tanh. */
        GELU_TANH,
        /**
         * With a gate of at most 7, and values from -7 to 7, plus 1: {@code x sigmoid(1.702 x)
         * (value + 1)}.
         */
        CLAMPED_SILU
    }

    /**
     * Attention.
     *
     * @param window the number of tokens that a token attends to, itself included; 0 for all
     * @param scale the factor of the scores
     * @param cap limits scores to {@code cap · tanh(score / cap)}; 0 for no limit
     * @param sinks whether each head has a score that takes part in the softmax and belongs to no
     *     token
     */
    public record Attention(
            Rope rope,
            int window,
            double scale,
            double cap,
            boolean inputBias,
            boolean outputBias,
            HeadNorms headNorms,
            boolean sinks) {

        /** {@return attention as in Llama, with or without biases} */
        static Attention of(Rope rope, int headSize, boolean bias) {
            double scale = 1 / Math.sqrt(headSize);
            return new Attention(rope, 0, scale, 0, bias, bias, HeadNorms.NONE, false);
        }

        /** {@return this attention with another window, in tokens; 0 for all} */
        public Attention withWindow(int tokens) {
            check(tokens >= 0, "sliding_window must be 1 or more, not %d", tokens);
            return new Attention(rope, tokens, scale, cap, inputBias, outputBias, headNorms, sinks);
        }

        /** {@return this attention without rotary embedding} */
        Attention withoutRotation() {
            return withRope(Rope.linear(rope.theta(), rope.pairs(), Double.POSITIVE_INFINITY));
        }

        Attention withRope(Rope other) {
            return new Attention(
                    other, window, scale, cap, inputBias, outputBias, headNorms, sinks);
        }

        Attention withScale(double factor) {
            return new Attention(
                    rope, window, factor, cap, inputBias, outputBias, headNorms, sinks);
        }

        Attention withBiases(boolean input, boolean output) {
            return new Attention(rope, window, scale, cap, input, output, headNorms, sinks);
        }

        Attention withHeadNorms(HeadNorms norms) {
            return new Attention(rope, window, scale, cap, inputBias, outputBias, norms, sinks);
        }

        /** {@return whether all tokens of a sequence are attended to, by softmax of the scores} */
        public boolean isPlain(int headSize, int length) {
            boolean all = window == 0 || length <= window;
            return all && cap == 0 && !sinks && scale == 1 / Math.sqrt(headSize);
        }
    }

    /**
     * An MLP, {@code down(activation(gate(x)) · up(x))}, with biases of all three projections or
     * none; or, unless {@code experts} is null, a mixture of such experts, whose router has a bias
     * if they have.
     */
    public record Mlp(int intermediateSize, Activation activation, boolean bias, Experts experts) {}

    /**
     * A mixture of experts. A router scores the experts of each token; the result is the sum of the
     * results of the {@code chosen} ones, weighted by the softmax of the scores, divided by the sum
     * of the weights if {@code normalizes}.
     */
    public record Experts(int count, int chosen, boolean normalizes) {

        public Experts {
            check(
                    count >= 1 && count <= ModelConfig.MAX_LAYERS && chosen >= 1 && chosen <= count,
                    "num_experts_per_tok must be from 1 to the number of experts, not %d of %d",
                    chosen,
                    count);
        }
    }
}
