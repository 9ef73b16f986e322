// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * RecordSchema  the JSON schema of a record
 */
/**
 * Text generation on tensor-parallel ranks, and embeddings: the types of the public API. Start with
 * {@link ChatModel} or {@link EmbeddingModel}, or for prompts with {@link
 * org.djlx.llm.engine.TextEngine}, which implements {@link TextGenerator}.
 *
 * <ul>
 *   <li>{@link ChatAnswer} - text, reasoning and calls of tools of an answer
 *   <li>{@link ChatGeneration} - an accepted request and the parts of its answer
 *   <li>{@link ChatModel} - chats with a model: messages in; text, parts or a record out
 *   <li>{@link ChatRequest} - messages, tools and options
 *   <li>{@link EmbeddingModel} - computes a vector of each text
 *   <li>{@link Embeddings} - the vectors of texts
 *   <li>{@link FinishReason} - why a generation has ended
 *   <li>{@link GeneratedPiece} - a generated token and its text
 *   <li>{@link Generation} - an accepted request and its generated pieces
 *   <li>{@link GenerationRequest} - prompt, sampling parameters and stop conditions
 *   <li>{@link GeneratorStatistics} - counters of a generator
 *   <li>{@link TextGenerator} - generates text for many requests at a time
 * </ul>
 */
package org.djlx.llm;
