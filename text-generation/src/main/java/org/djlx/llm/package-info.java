// SPDX-License-Identifier: Apache-2.0
/**
 * Text generation on tensor-parallel ranks: the types of the public API. Start with {@link
 * org.djlx.llm.engine.TextEngine}, which implements {@link TextGenerator}.
 *
 * <ul>
 *   <li>{@link FinishReason} - why a generation has ended
 *   <li>{@link GeneratedPiece} - a generated token and its text
 *   <li>{@link Generation} - an accepted request and its generated pieces
 *   <li>{@link GenerationRequest} - prompt, sampling parameters and stop conditions
 *   <li>{@link GeneratorStatistics} - counters of a generator
 *   <li>{@link TextGenerator} - generates text for many requests at a time
 * </ul>
 */
package org.djlx.llm;
