/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/**
 * Between text and tokens: tokenizers, chat templates, and streams that detokenize.
 *
 * <ul>
 *   <li>{@link org.djlx.fusedops.llm.text.ChatTemplate} - makes a prompt of a chat
 *   <li>{@link org.djlx.fusedops.llm.text.ModelTokenizer} - the tokenizer of a model directory
 *   <li>{@link org.djlx.fusedops.llm.text.TextStream} - turns tokens into text as they come
 *   <li>{@link org.djlx.fusedops.llm.text.TextTokenizer} - turns text into tokens and back
 * </ul>
 */
package org.djlx.fusedops.llm.text;
