// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm;

/**
 * Counters of a {@link TextGenerator}, at one moment.
 *
 * @param running the requests in the batch
 * @param queued the requests that wait: in the queue, or preempted
 * @param cacheBlocksInUse the KV cache blocks that running requests hold
 * @param cacheBlocks the KV cache blocks in total
 * @param cacheBytes the size of the KV cache on each rank, in bytes
 * @param prefixCacheQueries the prompt tokens that were looked up in the prefix cache
 * @param prefixCacheHits the prompt tokens that were found in the prefix cache
 * @param preemptions how many times a running request lost its KV cache blocks to an older one, to
 *     be computed again later
 * @param finished the requests that have ended, neither cancelled nor failed
 * @param cancelled the requests that were cancelled
 * @param failed the requests that failed
 * @param promptTokens the prompt tokens computed or found in the prefix cache (prefill), each once
 * @param generatedTokens the tokens generated (decode)
 * @param reloads how many times the model was loaded again after a rank failed
 */
public record GeneratorStatistics(
        int running,
        int queued,
        int cacheBlocksInUse,
        int cacheBlocks,
        long cacheBytes,
        long prefixCacheQueries,
        long prefixCacheHits,
        long preemptions,
        long finished,
        long cancelled,
        long failed,
        long promptTokens,
        long generatedTokens,
        int reloads) {}
