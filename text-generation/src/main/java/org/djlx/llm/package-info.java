// SPDX-License-Identifier: Apache-2.0
/**
 * Text generation on tensor-parallel ranks: the types of the public API. Start with {@link
 * org.djlx.llm.engine.TextEngine}, which implements {@link org.djlx.llm.TextGenerator}.
 *
 * <ul>
 *   <li>{@link org.djlx.llm.FinishReason} - why a generation has ended
 *   <li>{@link org.djlx.llm.GeneratedPiece} - a generated token and its text
 *   <li>{@link org.djlx.llm.Generation} - an accepted request and its generated pieces
 *   <li>{@link org.djlx.llm.GenerationRequest} - prompt, sampling parameters and stop conditions
 *   <li>{@link org.djlx.llm.GeneratorStatistics} - counters of a generator
 *   <li>{@link org.djlx.llm.TextGenerator} - generates text for many requests at a time
 * </ul>
 */
package org.djlx.llm;
