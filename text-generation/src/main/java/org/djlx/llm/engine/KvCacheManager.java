// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.engine;

import java.util.ArrayList;
import java.util.List;
import org.djlx.llm.ops.KvCache;

/**
 * Gives sequences the blocks of the KV cache as they grow. With prefix caching, a sequence starts
 * with the blocks that hold the beginning of its tokens, computed for other sequences or for itself
 * before it was preempted. Not thread-safe.
 */
final class KvCacheManager {

    private final boolean prefixCaching;
    private BlockPool pool;
    private long queriedTokens;
    private long hitTokens;

    KvCacheManager(int blocks, boolean prefixCaching) {
        this.prefixCaching = prefixCaching;
        pool = new BlockPool(blocks);
    }

    static int blocks(int tokens) {
        return (tokens + KvCache.BLOCK_TOKENS - 1) / KvCache.BLOCK_TOKENS;
    }

    /** Forgets all blocks, for a new cache. No sequence may have blocks. */
    void reset(int blocks) {
        pool = new BlockPool(blocks);
    }

    BlockPool pool() {
        return pool;
    }

    long queriedTokens() {
        return queriedTokens;
    }

    long hitTokens() {
        return hitTokens;
    }

    /**
     * Gives a sequence blocks for all its known tokens; returns false if that would leave fewer
     * than {@code reserved} free. At least the last token is left to compute.
     */
    boolean start(Sequence sequence, int reserved) {
        List<Integer> hits =
                prefixCaching && !sequence.needsPromptLogits() ? find(sequence) : List.of();
        int needed = blocks(sequence.knownTokens()) - hits.size();
        long hitsFromFree = hits.stream().filter(pool::isFree).count();
        if (needed + hitsFromFree + reserved > pool.free()) {
            return false;
        }
        hits.forEach(pool::touch);
        List<Integer> all = new ArrayList<>(hits);
        all.addAll(allocate(needed));
        if (prefixCaching && !sequence.isStarted()) {
            queriedTokens += sequence.promptTokens();
            hitTokens += (long) hits.size() * KvCache.BLOCK_TOKENS;
        }
        sequence.start(all, hits.size());
        return true;
    }

    /** Returns the cached blocks of the longest cached prefix of a sequence. */
    private List<Integer> find(Sequence sequence) {
        List<Integer> hits = new ArrayList<>();
        int most = (sequence.knownTokens() - 1) / KvCache.BLOCK_TOKENS;
        while (hits.size() < most) {
            Integer block = pool.find(sequence.blockHash(hits.size()));
            if (block == null) {
                break;
            }
            hits.add(block);
        }
        // A prompt that was computed in chunks from its beginning is computed in the same chunks
        // again: other chunks would round in another order.
        boolean isPartOfPrompt = hits.size() * KvCache.BLOCK_TOKENS < sequence.promptTokens();
        boolean sameChunks = sequence.isStarted() && sequence.queue.cachedTokens() == 0;
        return isPartOfPrompt && sameChunks ? List.of() : hits;
    }

    /** Grows a running sequence to this many tokens. Returns false if too few blocks are free. */
    boolean grow(Sequence sequence, int tokens) {
        int missing = blocks(tokens) - sequence.blocks().size();
        if (missing > pool.free()) {
            return false;
        }
        if (missing > 0) {
            sequence.addBlocks(allocate(missing));
        }
        return true;
    }

    private List<Integer> allocate(int count) {
        List<Integer> blocks = new ArrayList<>(count);
        while (blocks.size() < count) {
            blocks.add(pool.allocate());
        }
        return blocks;
    }

    /** Makes full blocks findable: those with known tokens that are computed or scheduled. */
    void cacheBlocks(Sequence sequence) {
        if (prefixCaching) {
            sequence.uncachedBlocks(pool::cache);
        }
    }

    /**
     * Frees the blocks of a sequence, if it has any. They can be found until they are evicted, the
     * last block first.
     */
    void free(Sequence sequence) {
        cacheBlocks(sequence);
        List<Integer> blocks = sequence.blocks();
        for (int i = blocks.size() - 1; i >= 0; i--) {
            pool.release(blocks.get(i));
        }
        sequence.removeBlocks();
    }
}
