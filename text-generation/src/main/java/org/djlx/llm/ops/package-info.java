// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * Adapters         LoRA adapters beside the weights
 * ArrayOps         base class of TorchOps and CudaOps: collectives and the residual stream, over libtorch's arrays
 * BertEncoder      BERT, RoBERTa and XLM-RoBERTa
 * CpuOps           LayerOps of decode steps on a CPU, and of prompts of quantized weights, by kernels
 * CudaAttention    attention of prefills with kernels
 * CudaModel        a model with kernels on a GPU
 * CudaOps          LayerOps of prefills with kernels
 * Decoder          decode steps on a GPU, as CUDA graphs; contains the LayerOps that record a graph
 * DecoderEncoder   a language model as an encoder
 * DecoderKernels   launches the kernels of decoding: matmuls of few rows, attention, sampling
 * DecoderMatmuls   the matmuls of decode steps, and the norms between them
 * DenseLayers      projections of encoders, by libtorch or by a kernel for AMX
 * EncoderWeights   reads the weights of an encoder
 * ExpertKernels    launches the kernels of experts in decode steps
 * ExpertRouter     chooses the experts of tokens where no kernel does
 * Float32Matmul    matmuls of 16-bit prompts in float32, for CPUs without AVX-512
 * ForwardPass      the one forward pass of all models and devices
 * LayerOps         the operators of a forward pass
 * LoraKernels      adapters of the matmuls of decode steps on a GPU
 * MatmulChain      several matmuls of few rows as one kernel
 * ModernBertEncoder ModernBERT
 * Operand          the input of a projection, in the model's type or in e4m3
 * PackedEncoder    base class of encoders: attention in both directions
 * PaddedSequences  sequences of different lengths, padded in few arrays
 * QuantizeKernels  conversions of 16-bit rows to 8 and 4 bits
 * QuantizedMatrix  weights of a projection in 8 or 4 bits
 * RankModel        configuration, group, weights, cache and rotary tables of a rank
 * RotaryTables     cosines and sines of the rotary embeddings
 * TorchAttention   attention over the KV cache, and rotary embedding, with libtorch
 * TorchModel       a model on CPUs, or on a GPU without kernels for it
 * TorchOps         LayerOps with libtorch
 * WeightFormat     how a rank stores the weights of projections
 * WeightQuantizer  quantizes projections while they are read
 * WeightReader     reads a rank's weights from safetensors
 * WideExperts      launches the kernels of experts in prefills, on Hopper GPUs
 * WideMatmul       a matmul of up to 128 rows in 16 bits, or 64 in e4m3
 */
/**
 * One rank's part of a language model: weights, KV cache, and one forward pass over {@code
 * LayerOps}, which has an implementation for libtorch, for CPUs and for GPUs. Start with {@link
 * TransformerModel}.
 *
 * <ul>
 *   <li>{@link KvCache} - a rank's part of the paged KV cache
 *   <li>{@link ModelKernels} - the model's kernels on a rank's GPU
 *   <li>{@link ModelWeights} - a rank's weights in memory
 *   <li>{@link SequenceEncoder} - computes vectors of texts
 *   <li>{@link TokenBatch} - the tokens of one forward pass
 *   <li>{@link TransformerModel} - the layers, prefill and decode
 * </ul>
 */
package org.djlx.llm.ops;
