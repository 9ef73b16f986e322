// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm;

import java.util.List;

/**
 * The vectors of texts, in the order of the texts.
 *
 * @param vectors a vector of each text; not shared with other results
 * @param tokens the number of tokens of all texts, special tokens included
 */
public record Embeddings(List<float[]> vectors, long tokens) {}
