/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/* Package-private:
 * BlockOperators  what is computed between matmuls, by kernels
 * VocabularyPart  which tokens are a rank's
 */
/**
 * Blocks of DJL whose parameters are divided among the ranks of a group.
 *
 * <ul>
 *   <li>{@link org.djlx.fusedops.nn.ColumnParallelLinear} - a linear layer, divided by outputs:
 *       into a parallel region
 *   <li>{@link org.djlx.fusedops.nn.ParallelEmbedding} - a vector for each token, divided by tokens
 *   <li>{@link org.djlx.fusedops.nn.ParallelMlp} - both linear layers around SwiGLU
 *   <li>{@link org.djlx.fusedops.nn.ParallelSelfAttention} - attention, divided by heads
 *   <li>{@link org.djlx.fusedops.nn.ParallelTransformerBlock} - a layer of a Llama: attention and
 *       MLP, each behind a norm
 *   <li>{@link org.djlx.fusedops.nn.RmsNorm} - the normalisation between them
 *   <li>{@link org.djlx.fusedops.nn.RotaryEmbedding} - tells attention where tokens are
 *   <li>{@link org.djlx.fusedops.nn.RowParallelLinear} - a linear layer, divided by inputs: out of
 *       it
 *   <li>{@link org.djlx.fusedops.nn.ShardedBlock} - what they have in common: how parameters are
 *       divided, saved and loaded
 *   <li>{@link org.djlx.fusedops.nn.VocabularyParallelCrossEntropy} - the loss of a language model,
 *       of divided scores
 * </ul>
 */
package org.djlx.fusedops.nn;
