// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * BlockKernels    kernels of a transformer block between its matmuls, with gradients
 * BlockOperators  operators between matmuls, by kernels or libtorch, with gradients
 * VocabularyPart  the tokens of a vocabulary that belong to a rank
 */
/**
 * DJL blocks whose parameters are divided among the ranks of a group.
 *
 * <ul>
 *   <li>{@link org.djlx.training.nn.ColumnParallelLinear} - linear layer divided by outputs: enters
 *       a parallel region
 *   <li>{@link org.djlx.training.nn.Lora} - low-rank adapters of projections
 *   <li>{@link org.djlx.training.nn.ParallelEmbedding} - embedding divided by tokens
 *   <li>{@link org.djlx.training.nn.ParallelMlp} - MLP with SwiGLU
 *   <li>{@link org.djlx.training.nn.ParallelSelfAttention} - causal attention divided by heads
 *   <li>{@link org.djlx.training.nn.ParallelTransformerBlock} - a Llama layer: attention and MLP,
 *       with a norm before each
 *   <li>{@link org.djlx.training.nn.RmsNorm} - RMSNorm
 *   <li>{@link org.djlx.training.nn.RotaryEmbedding} - rotary position embedding for attention
 *   <li>{@link org.djlx.training.nn.RowParallelLinear} - linear layer divided by inputs: leaves a
 *       parallel region
 *   <li>{@link org.djlx.training.nn.ShardedBlock} - base class: dividing, saving and loading of
 *       parameters
 *   <li>{@link org.djlx.training.nn.TensorParallel} - divides linear layers of an existing block
 *   <li>{@link org.djlx.training.nn.VocabularyParallelCrossEntropy} - loss of a language model with
 *       a divided vocabulary
 * </ul>
 */
package org.djlx.training.nn;
