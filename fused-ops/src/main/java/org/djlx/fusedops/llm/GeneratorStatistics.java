/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.llm;

/**
 * What a {@link TextGenerator} does at a moment, and has done.
 *
 * @param running the requests whose tokens are being generated
 * @param queued the requests that wait for room
 * @param cacheBlocksInUse the blocks of the key-value cache that running requests hold
 * @param cacheBlocks all blocks of the cache
 * @param cacheBlockTokens the tokens that a block holds
 * @param cacheBytes the memory of the cache on each rank, in bytes
 * @param finished the requests that have ended, since the start, neither cancelled nor failed
 * @param cancelled those that were cancelled
 * @param failed those that have failed
 * @param promptTokens the tokens of prompts that the model has read
 * @param generatedTokens the tokens it has generated
 * @param rebuilds how often the model was loaded again after a rank had failed
 */
public record GeneratorStatistics(
        int running,
        int queued,
        int cacheBlocksInUse,
        int cacheBlocks,
        int cacheBlockTokens,
        long cacheBytes,
        long finished,
        long cancelled,
        long failed,
        long promptTokens,
        long generatedTokens,
        int rebuilds) {}
