/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/**
 * Text generation on tensor-parallel ranks: what a user names. Start with {@link
 * org.djlx.fusedops.llm.TextGenerator}; {@link org.djlx.fusedops.llm.engine.LlamaGenerator} is the
 * generator.
 *
 * <ul>
 *   <li>{@link org.djlx.fusedops.llm.FinishReason} - why it has ended
 *   <li>{@link org.djlx.fusedops.llm.GeneratedPiece} - one token of that, with its text
 *   <li>{@link org.djlx.fusedops.llm.Generation} - what becomes of it
 *   <li>{@link org.djlx.fusedops.llm.GenerationRequest} - one of them
 *   <li>{@link org.djlx.fusedops.llm.GeneratorStatistics} - what a generator does
 *   <li>{@link org.djlx.fusedops.llm.TextGenerator} - what takes requests
 * </ul>
 */
package org.djlx.fusedops.llm;
