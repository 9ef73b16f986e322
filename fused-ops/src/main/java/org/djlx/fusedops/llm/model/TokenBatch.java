/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.llm.model;

import java.util.List;
import org.djlx.fusedops.internal.LlamaKernels;
import org.djlx.fusedops.llm.sampling.SamplingParameters;

/**
 * What a forward pass computes: tokens of several sequences, one after the other, whose keys and
 * values go to the cache. The same on all ranks.
 *
 * @param chunks the sequences; those of one token come first
 */
public record TokenBatch(List<Chunk> chunks) {

    /**
     * In place of a token: what was chosen last for the sequence, which only the ranks know yet.
     */
    public static final int CHOSEN = LlamaKernels.CHOSEN;

    /** The most tokens of a chunk that are decoded where ranks have kernels. */
    public static final int DECODED_TOKENS = LlamaKernels.MAX_ROWS;

    /**
     * Tokens of one sequence that follow each other.
     *
     * @param tokens the tokens; one may be {@link #CHOSEN}, alone
     * @param start the position of the first, and how many are in the cache already
     * @param rows where in the cache the sequence's tokens are, from its first on, these included
     * @param wanted whether the scores of what follows the last token are
     * @param draw how ranks that have kernels choose the token that follows; if it is {@link
     *     SamplingParameters#BEST}, the caller may choose another one from all scores
     */
    public record Chunk(
            int[] tokens, int start, int[] rows, boolean wanted, SamplingParameters draw) {

        public Chunk(int[] tokens, int start, int[] rows, boolean wanted) {
            this(tokens, start, rows, wanted, SamplingParameters.BEST);
        }

        public int length() {
            return start + tokens.length;
        }

        public boolean isDecoded() {
            return tokens.length <= DECODED_TOKENS;
        }
    }

    public TokenBatch {
        boolean several = false;
        for (Chunk chunk : chunks) {
            if (several && chunk.tokens.length == 1) {
                throw new IllegalArgumentException("chunks of one token must come first");
            }
            several |= chunk.tokens.length > 1;
        }
        chunks = List.copyOf(chunks);
    }

    /** Returns how many chunks have one token. */
    public int singles() {
        return (int) chunks.stream().filter(chunk -> chunk.tokens.length == 1).count();
    }

    public int tokens() {
        return chunks.stream().mapToInt(chunk -> chunk.tokens.length).sum();
    }
}
