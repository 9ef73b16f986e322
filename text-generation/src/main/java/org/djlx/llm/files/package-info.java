// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * BlobDownload  downloads one file, resumes it and checks it
 * HubCache      a model in huggingface_hub's cache
 * HubClient     requests to a hub
 * HubException  an answer of a hub that cannot be used
 */
/**
 * Model directories in Hugging Face's layout: from a hub, and written for benchmarks and to try
 * things with.
 *
 * <ul>
 *   <li>{@link ModelHub} - models by name, downloaded
 *   <li>{@link RandomLlama} - a Llama of random weights
 *   <li>{@link LlamaDirectory} - writes the directory of a Llama
 *   <li>{@link BytePairEncoding} - trains a tokenizer on a text
 * </ul>
 */
package org.djlx.llm.files;
