// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * LlamaDirectory - writes the model directory of a Llama
 * BytePairEncoding - trains a tokenizer on a text
 * SlowProgress - prints progress after a while only
 */
/**
 * Generates text, and writes model directories in Hugging Face's layout.
 *
 * <ul>
 *   <li>{@link org.djlx.samples.generate.GenerateCommand} - {@code generate}: continues a prompt
 *   <li>{@link org.djlx.samples.generate.ServeModelCommand} - {@code serve-model}: writes a small
 *       random model
 *   <li>{@link org.djlx.samples.generate.ModelOptions} - the options of commands that generate text
 *   <li>{@link org.djlx.samples.generate.RandomLlama} - a random model for benchmarks
 *   <li>{@link org.djlx.samples.generate.TrainedLlama} - writes a model trained on bytes
 * </ul>
 */
package org.djlx.samples.generate;
