// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * EmbeddingModelService  answers texts and requests of DJL Serving with an embedding model
 * TextModelService       serves requests of DJL Serving with a generator
 */
/**
 * Loads a model directory as a DJL model, for {@code Criteria} and DJL Serving. Start with {@link
 * TextModelLoader}.
 *
 * <ul>
 *   <li>{@link TextModelLoader} - loads a model directory
 * </ul>
 */
package org.djlx.llm.djl;
