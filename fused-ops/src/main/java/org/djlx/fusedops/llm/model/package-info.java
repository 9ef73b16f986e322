// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * Attention  attention of a rank's heads over the KV cache, and rotary embedding, with libtorch
 * Decoder    decode steps on a GPU, recorded as CUDA graphs
 */
/**
 * One rank's part of a Llama model: configuration, weights, KV cache, and the forward pass on CPU
 * and GPU. Start with {@link org.djlx.fusedops.llm.model.LlamaModel}.
 *
 * <ul>
 *   <li>{@link org.djlx.fusedops.llm.model.KvCache} - a rank's part of the paged KV cache
 *   <li>{@link org.djlx.fusedops.llm.model.LlamaConfig} - the configuration, from {@code
 *       config.json}
 *   <li>{@link org.djlx.fusedops.llm.model.LlamaGpu} - the model's kernels on a rank's GPU
 *   <li>{@link org.djlx.fusedops.llm.model.LlamaModel} - the layers, prefill and decode
 *   <li>{@link org.djlx.fusedops.llm.model.LlamaWeights} - a rank's weights, read from safetensors
 *   <li>{@link org.djlx.fusedops.llm.model.TokenBatch} - the tokens of one forward pass
 * </ul>
 */
package org.djlx.fusedops.llm.model;
