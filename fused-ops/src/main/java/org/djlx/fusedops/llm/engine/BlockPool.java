// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.engine;

import java.util.ArrayDeque;
import java.util.Deque;

/**
 * Allocates the blocks of the KV cache. A slot holds one token; a block is a number of adjacent
 * slots. Not thread-safe.
 */
final class BlockPool {

    private final int blockTokens;
    private final int blocks;
    private final Deque<Integer> free = new ArrayDeque<>();

    BlockPool(int blocks, int blockTokens) {
        this.blocks = blocks;
        this.blockTokens = blockTokens;
        for (int i = 0; i < blocks; i++) {
            free.add(i);
        }
    }

    /** Returns the number of blocks that hold this many tokens. */
    static int blocks(int tokens, int blockTokens) {
        return (tokens + blockTokens - 1) / blockTokens;
    }

    int blocks() {
        return blocks;
    }

    int inUse() {
        return blocks - free.size();
    }

    /** Returns the slots for this many tokens, in whole blocks; null if too few blocks are free. */
    int[] allocate(int tokens) {
        int needed = blocks(tokens, blockTokens);
        if (needed > free.size()) {
            return null;
        }
        int[] slots = new int[needed * blockTokens];
        for (int block = 0; block < needed; block++) {
            int first = free.remove() * blockTokens;
            for (int i = 0; i < blockTokens; i++) {
                slots[block * blockTokens + i] = first + i;
            }
        }
        return slots;
    }

    /** Frees the blocks that {@link #allocate} returned. */
    void free(int[] slots) {
        for (int i = 0; i < slots.length; i += blockTokens) {
            free.add(slots[i] / blockTokens);
        }
    }
}
