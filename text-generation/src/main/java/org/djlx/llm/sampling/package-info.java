// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * JsonSchema  compiles a JSON schema to a term
 * Regex       compiles a regular expression to a term
 * Terms       grammars over bytes, and their derivatives
 */
/**
 * Sampling: logits in, tokens out.
 *
 * <ul>
 *   <li>{@link Constraint} - the state of a sequence whose text follows a grammar
 *   <li>{@link Grammar} - the texts that a generation may have: a JSON schema, a regular
 *       expression, a choice
 *   <li>{@link LogitEdits} - penalties, biases and allowed tokens of one token
 *   <li>{@link Logits} - the logits of several sequences, on the device
 *   <li>{@link Sampler} - samples the next token of a sequence
 *   <li>{@link SamplingOptions} - how the tokens of a sequence are sampled
 *   <li>{@link SamplingParameters} - how one token is sampled
 *   <li>{@link TokenLogProbability} - a token that could have been generated
 *   <li>{@link Vocabulary} - the bytes of a model's tokens, and the tokens that a grammar allows
 *       next
 * </ul>
 */
package org.djlx.llm.sampling;
