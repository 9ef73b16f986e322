// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.model;

import java.util.List;
import org.djlx.fusedops.internal.DecoderKernels;
import org.djlx.fusedops.llm.sampling.SamplingParameters;

/**
 * The tokens of one forward pass: a chunk of each scheduled sequence, or several chunks of one
 * token each. The same on all ranks.
 *
 * @param chunks the chunks; chunks of one token come first
 */
public record TokenBatch(List<Chunk> chunks) {

    /**
     * A placeholder for the token that was last sampled for the sequence. Only the device knows
     * that token.
     */
    public static final int LAST_SAMPLED = DecoderKernels.LAST_SAMPLED;

    /**
     * The maximum number of tokens of a chunk for the decode kernels, whose attention reads the
     * keys and values of a sequence once for each of its tokens.
     */
    public static final int MAX_DECODE_TOKENS = 64;

    /**
     * Adjacent tokens of one sequence.
     *
     * @param sequence the index of the sequence, unique among those that run, and less than the
     *     number of KV cache blocks; ranks with kernels keep its last sampled token there
     * @param tokens the tokens; or {@link #LAST_SAMPLED} alone
     * @param start the position of the first token, which is the number of tokens in the KV cache
     * @param slots the KV cache slots of the sequence by position: at least up to the last of these
     *     tokens
     * @param needsLogits whether the logits after the last token are needed
     * @param sampling how ranks with kernels sample the next token; with {@link
     *     SamplingParameters#GREEDY} the host may sample another token from the full logits
     */
    public record Chunk(
            int sequence,
            int[] tokens,
            int start,
            int[] slots,
            boolean needsLogits,
            SamplingParameters sampling) {

        /** {@return the length of the sequence up to the end of this chunk} */
        public int length() {
            return start + tokens.length;
        }

        /**
         * {@return whether the chunk is small enough for the decode kernels: at most {@link
         * #MAX_DECODE_TOKENS} tokens}
         */
        public boolean isDecodable() {
            return tokens.length <= MAX_DECODE_TOKENS;
        }
    }

    /**
     * Checks the order of the chunks.
     *
     * @param chunks the chunks
     * @throws IllegalArgumentException if a chunk of one token follows a longer chunk
     */
    public TokenBatch {
        boolean seenLonger = false;
        for (Chunk chunk : chunks) {
            if (seenLonger && chunk.tokens.length == 1) {
                throw new IllegalArgumentException("chunks of one token must come first");
            }
            seenLonger |= chunk.tokens.length > 1;
        }
        chunks = List.copyOf(chunks);
    }

    /** Returns the number of chunks of one token. */
    int decodes() {
        return (int) chunks.stream().filter(chunk -> chunk.tokens.length == 1).count();
    }

    /** Returns the number of tokens of all chunks. */
    int tokens() {
        return chunks.stream().mapToInt(chunk -> chunk.tokens.length).sum();
    }
}
