/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.llm;

/**
 * One token that was generated, and the text that has become certain with it. The texts of all
 * pieces of a {@link Generation}, put together, are its text.
 *
 * @param token the token
 * @param text the text; empty while the token may be the beginning of a stop string or holds but a
 *     part of a character, and if the generator has no tokenizer. That of a stop token, and a stop
 *     string with what follows it, is left out
 * @param logProbability the natural logarithm of the token's probability as the model has it,
 *     before penalties and temperature
 */
public record GeneratedPiece(int token, String text, float logProbability) {}
