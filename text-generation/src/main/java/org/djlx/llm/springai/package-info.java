// SPDX-License-Identifier: Apache-2.0
/**
 * Models as those of <a href="https://spring.io/projects/spring-ai">Spring AI</a>, in this JVM.
 * Needs {@code org.springframework.ai:spring-ai-model}, which is an optional dependency.
 *
 * <ul>
 *   <li>{@link SpringChatModel} - a chat model
 *   <li>{@link SpringEmbeddingModel} - an embedding model
 * </ul>
 */
package org.djlx.llm.springai;
