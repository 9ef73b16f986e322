// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * Architecture   what is particular to an architecture; found by model_type
 * ConfigEntries  checked entries of a JSON file
 * Gemma2         Gemma 2
 * Gemma3         Gemma 3 for text
 * Llama          Llama
 * Mistral        Mistral
 * Mixtral        Mixtral
 * Phi3           Phi 3
 * Qwen2          Qwen 2 and 2.5
 * Qwen3          Qwen 3
 * Qwen3Moe       Qwen 3 with experts
 */
/**
 * What a model is: its configuration and the map of its weights. Computes nothing.
 *
 * <ul>
 *   <li>{@link org.djlx.llm.model.KvCacheDtype} - how keys and values are stored
 *   <li>{@link org.djlx.llm.model.LayerConfig} - what one layer computes
 *   <li>{@link org.djlx.llm.model.ModelConfig} - the configuration, from {@code config.json}
 *   <li>{@link org.djlx.llm.model.Quantization} - how the weights of projections are stored
 *   <li>{@link org.djlx.llm.model.Rope} - rotary embedding and its scaling
 *   <li>{@link org.djlx.llm.model.SamplingDefaults} - from {@code generation_config.json}
 *   <li>{@link org.djlx.llm.model.TensorPart} - the parts of a layer's weights, their names and how
 *       ranks divide them
 *   <li>{@link org.djlx.llm.model.WeightMap} - the tensors of a model, and what each rank has of
 *       them
 * </ul>
 */
package org.djlx.llm.model;
