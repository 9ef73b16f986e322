// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * BlockPool          allocates the blocks of the KV cache
 * EngineCore         the engine loop: schedule, run a step on the ranks, publish its tokens
 * GeneratorSettings  the checked options of a generator
 * InputProcessor     checks requests and tokenizes prompts
 * ModelRank          the worker of one rank
 * ModelRanks         all ranks of a generator, and loading the model onto them
 * PieceQueue         the queue between the engine thread and the caller
 * Scheduler          continuous batching and chunked prefill
 * Sequence           a request being served
 * StepRequest        one step, as sent to all ranks
 */
/**
 * The generation engine. A request becomes a sequence; the scheduler picks the sequences and tokens
 * of each step; the ranks run the step and sample. Start with {@link
 * org.djlx.fusedops.llm.engine.LlamaGenerator}.
 *
 * <ul>
 *   <li>{@link org.djlx.fusedops.llm.engine.LlamaGenerator} - generates text with a model from a
 *       directory
 * </ul>
 */
package org.djlx.fusedops.llm.engine;
