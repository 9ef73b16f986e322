/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.llm.engine;

import java.util.ArrayDeque;
import java.util.Deque;
import org.djlx.fusedops.llm.model.KvCache;

/** Gives out the rows of a {@link KvCache} in blocks of equal size. For one thread. */
public final class CacheBlocks {

    private final int tokens;
    private final int blocks;
    private final Deque<Integer> free = new ArrayDeque<>();

    public CacheBlocks(int blocks, int tokens) {
        this.blocks = blocks;
        this.tokens = tokens;
        for (int i = 0; i < blocks; i++) {
            free.add(i);
        }
    }

    /** Returns how many blocks some tokens take. */
    static int blocks(int tokens, int blockTokens) {
        return (tokens + blockTokens - 1) / blockTokens;
    }

    int blocks() {
        return blocks;
    }

    int blockTokens() {
        return tokens;
    }

    int inUse() {
        return blocks - free.size();
    }

    /** Returns rows for a number of tokens, or null if there are not enough. */
    public int[] take(int count) {
        int needed = blocks(count, tokens);
        if (needed > free.size()) {
            return null;
        }
        int[] rows = new int[needed * tokens];
        for (int block = 0; block < needed; block++) {
            int first = free.remove() * tokens;
            for (int i = 0; i < tokens; i++) {
                rows[block * tokens + i] = first + i;
            }
        }
        return rows;
    }

    /** Takes back what {@link #take} returned. */
    public void giveBack(int[] rows) {
        for (int i = 0; i < rows.length; i += tokens) {
            free.add(rows[i] / tokens);
        }
    }
}
