/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/* Package-private:
 * Attention  a rank's heads, and rotary positions
 * Decoder    computes a token of each sequence by a CUDA graph
 */
/**
 * A rank's part of a model: configuration, weights, layers, and the forward pass on CPU and GPU.
 *
 * <ul>
 *   <li>{@link org.djlx.fusedops.llm.model.KvCache} - a rank's keys and values
 *   <li>{@link org.djlx.fusedops.llm.model.LlamaConfig} - the sizes of a model
 *   <li>{@link org.djlx.fusedops.llm.model.LlamaGpu} - the kernels of a rank's GPU
 *   <li>{@link org.djlx.fusedops.llm.model.LlamaModel} - one rank's part of a model, and its
 *       forward pass
 *   <li>{@link org.djlx.fusedops.llm.model.LlamaWeights} - a rank's weights, and how they are read
 *   <li>{@link org.djlx.fusedops.llm.model.TokenBatch} - the tokens of one step, by sequence
 * </ul>
 */
package org.djlx.fusedops.llm.model;
