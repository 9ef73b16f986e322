// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.engine;

import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Set;

/**
 * The blocks of the KV cache. A block is in use while sequences reference it. A block that holds
 * known tokens can be found by its hash, also after its last reference was released, until the
 * block is evicted: least recently used first. Not thread-safe.
 */
final class BlockPool {

    private final int[] references;
    private final BlockHash[] hashes; // of the blocks that can be found; null for others
    private final Map<BlockHash, Integer> cached = new HashMap<>();

    // Blocks without references.
    private final Deque<Integer> empty = new ArrayDeque<>();
    private final Set<Integer> evictable = new LinkedHashSet<>(); // least recently used first

    BlockPool(int blocks) {
        references = new int[blocks];
        hashes = new BlockHash[blocks];
        for (int i = 0; i < blocks; i++) {
            empty.add(i);
        }
    }

    int blocks() {
        return references.length;
    }

    int inUse() {
        return blocks() - free();
    }

    /** Returns how many blocks {@link #allocate} can return. */
    int free() {
        return empty.size() + evictable.size();
    }

    boolean isFree(int block) {
        return references[block] == 0;
    }

    /** Returns a block with one reference. There must be a {@linkplain #free free} block. */
    int allocate() {
        Integer block = empty.poll();
        if (block == null) {
            block = evictable.iterator().next();
            evictable.remove(block);
            cached.remove(hashes[block]);
            hashes[block] = null;
        }
        references[block] = 1;
        return block;
    }

    /** Returns the block with this hash; null if there is none. */
    Integer find(BlockHash hash) {
        return cached.get(hash);
    }

    void touch(int block) {
        if (references[block]++ == 0) {
            evictable.remove(block); // Not in `empty`, because only cached blocks are touched.
        }
    }

    /** Makes a block findable, unless another block has the same hash. */
    void cache(int block, BlockHash hash) {
        if (cached.putIfAbsent(hash, block) == null) {
            hashes[block] = hash;
        }
    }

    void release(int block) {
        if (--references[block] == 0) {
            if (hashes[block] == null) {
                empty.add(block);
            } else {
                evictable.add(block);
            }
        }
    }
}
