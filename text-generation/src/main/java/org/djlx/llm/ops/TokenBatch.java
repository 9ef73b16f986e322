// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import org.djlx.llm.sampling.SamplingParameters;

/**
 * The tokens of one forward pass: a chunk of each scheduled sequence, or several chunks of one
 * token each, which come first. The same on all ranks.
 */
public record TokenBatch(List<Chunk> chunks) {

    /**
     * A placeholder for the token that was last sampled for the sequence. Only the device knows
     * that token.
     */
    public static final int LAST_SAMPLED = DecoderKernels.LAST_SAMPLED;

    /**
     * The most tokens of prompts that are rows of a decode step, on ranks with kernels: of all
     * chunks together, or of each chunk if the model is batch-invariant. More are a {@linkplain
     * #prefills prefill}. It lies below the break-even beside a decode step, about 100 tokens with
     * 8 billion bfloat16 parameters on an H100, because without one a prefill is faster from a few
     * tokens on.
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
     * @param sampling how ranks with kernels sample the next token; with {@link
     *     SamplingParameters#GREEDY} the host may sample another token from the full logits
     * @param adapter the id of the adapter that the tokens are computed with; 0 for none
     */
    public record Chunk(
            int sequence,
            int[] tokens,
            int start,
            int[] slots,
            boolean needsLogits,
            SamplingParameters sampling,
            int adapter) {

        /** {@return the length of the sequence up to the end of this chunk} */
        public int length() {
            return start + tokens.length;
        }

        /** Returns some of the tokens; those with the last token have the chunk's logits. */
        Chunk part(int from, int to) {
            boolean isLast = to == tokens.length;
            return new Chunk(
                    sequence,
                    Arrays.copyOfRange(tokens, from, to),
                    start + from,
                    slots,
                    needsLogits && isLast,
                    sampling,
                    adapter);
        }
    }

    /**
     * Throws an {@link IllegalArgumentException} if a chunk of one token follows a longer chunk.
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

    /**
     * Returns the prefills of ranks with kernels: chunks that one forward pass computes. All other
     * chunks are rows of a decode step.
     *
     * @param together whether chunks of several tokens are computed together: all of them in one
     *     prefill, first chunks of prompts before later ones, if together they have more than
     *     {@link #MAX_DECODE_TOKENS} tokens. Otherwise each chunk with more tokens is a prefill, so
     *     that its results do not depend on other chunks
     */
    List<List<Chunk>> prefills(boolean together) {
        List<Chunk> chunks = this.chunks.subList(decodes(), this.chunks.size());
        if (!together) {
            return chunks.stream()
                    .filter(chunk -> chunk.tokens.length > MAX_DECODE_TOKENS)
                    .map(List::of)
                    .toList();
        }
        if (tokens() - decodes() <= MAX_DECODE_TOKENS) {
            return List.of();
        }
        Comparator<Chunk> firstChunksFirst = Comparator.comparing(chunk -> chunk.start > 0);
        return List.of(chunks.stream().sorted(firstChunksFirst).toList());
    }

    int decodes() {
        return (int) chunks.stream().filter(chunk -> chunk.tokens.length == 1).count();
    }

    int tokens() {
        return chunks.stream().mapToInt(chunk -> chunk.tokens.length).sum();
    }
}
