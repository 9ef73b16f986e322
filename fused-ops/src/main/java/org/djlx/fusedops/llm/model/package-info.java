// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * Architecture   what is particular to an architecture; found by model_type
 * Attention      attention of a rank's heads over the KV cache, and rotary embedding, with libtorch
 * CpuDecoder     decode steps on a CPU, with kernels that read weights at the speed of memory
 * ConfigEntries  checked entries of a JSON file
 * Decoder        decode steps on a GPU, recorded as CUDA graphs
 * DecoderMatmuls  the matmuls of those steps, and the norms between them
 * ExpertRouter   chooses the experts of tokens
 * Float32Matmul  matmuls of 16-bit prompts in float32, for CPUs without AVX-512
 * Gemma2         Gemma 2
 * Gemma3         Gemma 3 for text
 * Llama          Llama
 * Mistral        Mistral
 * Mixtral        Mixtral
 * Operand        the input of a projection, in the model's type or in e4m3
 * Phi3           Phi 3
 * QuantizedMatrix  weights of a projection in 8 or 4 bits
 * Qwen2          Qwen 2 and 2.5
 * Qwen3          Qwen 3
 * Qwen3Moe       Qwen 3 with experts
 * TensorPart     the parts of a layer's weights, their names and how ranks divide them
 */
/**
 * One rank's part of a language model: configuration, weights, KV cache, and the forward pass on
 * CPU and GPU. Start with {@link org.djlx.fusedops.llm.model.TransformerModel}.
 *
 * <ul>
 *   <li>{@link org.djlx.fusedops.llm.model.KvCache} - a rank's part of the paged KV cache
 *   <li>{@link org.djlx.fusedops.llm.model.LayerConfig} - what one layer computes
 *   <li>{@link org.djlx.fusedops.llm.model.ModelConfig} - the configuration, from {@code
 *       config.json}
 *   <li>{@link org.djlx.fusedops.llm.model.ModelKernels} - the model's kernels on a rank's GPU
 *   <li>{@link org.djlx.fusedops.llm.model.ModelWeights} - a rank's weights, read from safetensors
 *   <li>{@link org.djlx.fusedops.llm.model.Quantization} - how the weights of projections are
 *       stored
 *   <li>{@link org.djlx.fusedops.llm.model.Rope} - rotary embedding and its scaling
 *   <li>{@link org.djlx.fusedops.llm.model.SamplingDefaults} - from {@code generation_config.json}
 *   <li>{@link org.djlx.fusedops.llm.model.TokenBatch} - the tokens of one forward pass
 *   <li>{@link org.djlx.fusedops.llm.model.TransformerModel} - the layers, prefill and decode
 * </ul>
 */
package org.djlx.fusedops.llm.model;
