// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm;

/**
 * A generated token and the text that it completes. The concatenated texts of all pieces of a
 * {@link Generation} are the generated text.
 *
 * @param token the token
 * @param text the text; empty while the token is only a part of a character or may begin a stop
 *     string, and if the generator has no tokenizer. The texts never contain a stop token, a stop
 *     string, or text after a stop string
 * @param logProbability the log probability of the token, before penalties and temperature
 */
public record GeneratedPiece(int token, String text, float logProbability) {}
