// SPDX-License-Identifier: Apache-2.0
/**
 * A model as a chat model of <a href="https://docs.langchain4j.dev">LangChain4j</a>, in this JVM.
 * Needs {@code dev.langchain4j:langchain4j-core}, which is an optional dependency.
 *
 * <ul>
 *   <li>{@link TextChatModel} - the model
 *   <li>{@link TextEmbeddingModel} - an embedding model
 * </ul>
 */
package org.djlx.llm.langchain4j;
