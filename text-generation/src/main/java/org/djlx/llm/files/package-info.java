// SPDX-License-Identifier: Apache-2.0
/**
 * Model directories in Hugging Face's layout, written for benchmarks and to try things with.
 *
 * <ul>
 *   <li>{@link RandomLlama} - a Llama of random weights
 *   <li>{@link LlamaDirectory} - writes the directory of a Llama
 *   <li>{@link BytePairEncoding} - trains a tokenizer on a text
 * </ul>
 */
package org.djlx.llm.files;
