/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/* Package-private:
 * GeneratorSettings  what a generator was built with
 * ModelRank          one rank: its part of the model, and the step it is running
 * ModelRanks         the ranks of a generator, and how a model is loaded onto them
 * PieceQueue         what its caller sees
 * Scheduler          which requests run, and what the model reads of them
 * StepRequest        one step, as it is sent to all ranks
 */
/**
 * Decides which sequences run, gives out KV cache blocks, and drives the ranks step by step. Start
 * with {@link org.djlx.fusedops.llm.engine.LlamaGenerator}.
 *
 * <ul>
 *   <li>{@link org.djlx.fusedops.llm.engine.CacheBlocks} - gives out its rows
 *   <li>{@link org.djlx.fusedops.llm.engine.LlamaGenerator} - a model on several ranks, from its
 *       directory
 *   <li>{@link org.djlx.fusedops.llm.engine.Sequence} - a request that is being served
 * </ul>
 */
package org.djlx.fusedops.llm.engine;
