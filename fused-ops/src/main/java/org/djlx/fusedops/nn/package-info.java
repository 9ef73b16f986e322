/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/**
 * Blocks of DJL whose parameters are divided among the ranks of a group. A plus marks what users
 * name.
 *
 * <pre>
 * + ParallelEmbedding                a vector for each token, divided by tokens
 * + ParallelTransformerBlock         a layer of a Llama: attention and MLP, each behind a norm
 * + ParallelSelfAttention            attention, divided by heads
 * + RotaryEmbedding                  tells attention where tokens are
 * + ParallelMlp                      both linear layers around SwiGLU
 * + ColumnParallelLinear             a linear layer, divided by outputs: into a parallel region
 * + RowParallelLinear                a linear layer, divided by inputs: out of it
 * + RmsNorm                          the normalisation between them
 * + VocabularyParallelCrossEntropy   the loss of a language model, of divided scores
 * + ShardedBlock                     what they have in common: how parameters are divided, saved
 *                                    and loaded
 *   BlockOperators                   what is computed between matmuls, by kernels
 *   VocabularyPart                   which tokens are a rank's
 * </pre>
 */
package org.djlx.fusedops.nn;
