// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * Architecture   what is particular to an architecture; found by model_type
 * ConfigEntries  checked entries of a JSON file
 * Layers         what the layers of each architecture compute
 */
/**
 * What a model is: its configuration and the map of its weights. Computes nothing.
 *
 * <ul>
 *   <li>{@link BlockFiles} - files with matrices in quantized blocks
 *   <li>{@link DerivedFiles} - files of tensors under other names
 *   <li>{@link EmbeddingConfig} - how an embedding model makes one vector of a text
 *   <li>{@link EncoderConfig} - the configuration of an encoder
 *   <li>{@link KvCacheDtype} - how keys and values are stored
 *   <li>{@link LayerConfig} - what one layer computes
 *   <li>{@link LoraConfig} - the configuration of a LoRA adapter, and its tensors
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
