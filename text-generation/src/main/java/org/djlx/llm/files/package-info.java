// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * BlobDownload   downloads one file, resumes it and checks it
 * GgufConfig     the metadata of a GGUF file as config.json
 * GgufFile       the checked header of a GGUF file
 * GgufNames      Hugging Face's names of the tensors of a GGUF file
 * GgufTokenizer  the vocabulary of a GGUF file as tokenizer.json
 * GgufType       types of tensors in GGUF files, and how they are dequantized
 * GgufWeights    the tensors of a GGUF file
 * GptOssWeights  the tensors of GPT-OSS, whose experts share tensors, in MXFP4
 * HubCache       a model in huggingface_hub's cache
 * HubClient      requests to a hub
 * HubException   an answer of a hub that cannot be used
 * PackedWeights  the tensors of AWQ and GPTQ files
 * TextModelFiles the language model in files of a model for images and text
 */
/**
 * Where models come from: a hub, GGUF files, and directories in Hugging Face's layout, written for
 * benchmarks and to try things with.
 *
 * <ul>
 *   <li>{@link ModelHub} - models by name, downloaded
 *   <li>{@link GgufDirectory} - the model directory of a GGUF file
 *   <li>{@link RandomLlama} - a Llama of random weights
 *   <li>{@link LlamaDirectory} - writes the directory of a Llama
 *   <li>{@link ByteLevelTokenizer} - a tokenizer whose tokens are bytes
 * </ul>
 */
package org.djlx.llm.files;
