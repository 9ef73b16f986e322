// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * AdapterRequest     sets the adapters of all ranks
 * AdapterTable       the names and states of adapters
 * BlockHash          identifies a block's tokens and all tokens before them
 * BlockPool          the blocks of the KV cache: references, hashes, eviction
 * CacheSize          chooses the size of the KV cache from the memory that is left
 * DeviceKinds        checks that ranks that choose experts compute the same logits
 * EmbeddingQueue     the texts that wait to be embedded, and batches of them
 * EngineCore         the engine loop: schedule, run a step on the ranks, publish its tokens
 * GeneratorSettings  the checked options of a generator
 * InputProcessor     checks requests and tokenizes prompts
 * KvCacheManager     allocates blocks for sequences, and finds the blocks of a cached prefix
 * ModelRank          the worker of one rank
 * ModelRanks         all ranks of a generator, and loading the model onto them
 * ModelSource        where the model of a builder comes from: a directory or a name
 * PieceQueue         the queue between the engine thread and the caller
 * Scheduler          continuous batching, chunked prefill, preemption (a sequence loses its blocks and waits)
 * Sequence           a request being served
 * StepRequest        one step, as sent to all ranks
 * TokenizerReader    reads the tokenizer while the ranks load the model
 */
/**
 * The generation engine. A request becomes a sequence; the scheduler picks the sequences and tokens
 * of each step; the ranks run the step and sample. Start with {@link TextEngine}.
 *
 * <ul>
 *   <li>{@link EmbeddingEngine} - computes embeddings with a model from a directory
 *   <li>{@link LoadingProgress} - writes the progress of loading as lines
 *   <li>{@link TextEngine} - generates text with a model from a directory
 * </ul>
 */
package org.djlx.llm.engine;
