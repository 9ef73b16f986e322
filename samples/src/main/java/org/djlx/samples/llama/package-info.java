/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/**
 * Llamas that are written to directories, and that write text.
 *
 * <pre>
 *   GenerateCommand    generate: writes text
 *   ServeModelCommand  serve-model: writes a small Llama of random weights
 *   ModelOptions       the options of commands that generate text
 *   LlamaDirectory     writes a model directory in Hugging Face's layout
 *   RandomLlama        one of random weights
 *   TrainedLlama       one that was trained
 *   BytePairEncoding   a tokenizer that is learned from a text
 * </pre>
 */
package org.djlx.samples.llama;
