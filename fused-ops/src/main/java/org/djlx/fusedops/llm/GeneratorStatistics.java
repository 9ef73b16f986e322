// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm;

/**
 * Counters of a {@link TextGenerator}, at one moment.
 *
 * @param running the requests in the batch
 * @param queued the requests in the queue, not yet in the batch
 * @param cacheBlocksInUse the KV cache blocks that running requests hold
 * @param cacheBlocks the KV cache blocks in total
 * @param cacheBlockTokens the tokens per block
 * @param cacheBytes the size of the KV cache on each rank, in bytes
 * @param finished the requests that have ended, neither cancelled nor failed
 * @param cancelled the requests that were cancelled
 * @param failed the requests that failed
 * @param promptTokens the prompt tokens computed (prefill)
 * @param generatedTokens the tokens generated (decode)
 * @param rebuilds how many times the model was loaded again after a rank failed
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
