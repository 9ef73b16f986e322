// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * Architecture   what is particular to an architecture; found by model_type
 * ConfigEntries  checked entries of a JSON file
 * Gemma          Gemma 1
 * Gemma2         Gemma 2
 * Gemma3         Gemma 3 for text
 * Glm            GLM 4
 * GptOss         GPT-OSS
 * Granite        Granite
 * Llama          Llama
 * Mistral        Mistral
 * Mixtral        Mixtral
 * Olmo2          OLMo 2
 * Phi3           Phi 3
 * Qwen2          Qwen 2 and 2.5
 * Qwen3          Qwen 3
 * Qwen3Moe       Qwen 3 with experts
 * SmolLm3        SmolLM 3
 */
/**
 * What a model is: its configuration and the map of its weights. Computes nothing.
 *
 * <ul>
 *   <li>{@link EmbeddingConfig} - how an embedding model makes one vector of a text
 *   <li>{@link EncoderConfig} - the configuration of an encoder
 *   <li>{@link KvCacheDtype} - how keys and values are stored
 *   <li>{@link LayerConfig} - what one layer computes
 *   <li>{@link ModelConfig} - the configuration, from {@code config.json}
 *   <li>{@link PackedFormat} - how a model's files pack weights of 4 bits
 *   <li>{@link Quantization} - how the weights of projections are stored
 *   <li>{@link Rope} - rotary embedding and its scaling
 *   <li>{@link SamplingDefaults} - from {@code generation_config.json}
 *   <li>{@link TensorPart} - the parts of a layer's weights, their names and how ranks divide them
 *   <li>{@link WeightMap} - the tensors of a model, and what each rank has of them
 * </ul>
 */
package org.djlx.llm.model;
