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
 *   <li>{@link org.djlx.llm.sampling.Constraint} - the state of a sequence whose text follows a
 *       grammar
 *   <li>{@link org.djlx.llm.sampling.Grammar} - the texts that a generation may have: a JSON
 *       schema, a regular expression, a choice
 *   <li>{@link org.djlx.llm.sampling.LogitEdits} - penalties, biases and allowed tokens of one
 *       token
 *   <li>{@link org.djlx.llm.sampling.Logits} - the logits of several sequences, on the device
 *   <li>{@link org.djlx.llm.sampling.Sampler} - samples the next token of a sequence
 *   <li>{@link org.djlx.llm.sampling.SamplingOptions} - how the tokens of a sequence are sampled
 *   <li>{@link org.djlx.llm.sampling.SamplingParameters} - how one token is sampled
 *   <li>{@link org.djlx.llm.sampling.TokenLogProbability} - a token that could have been generated
 *   <li>{@link org.djlx.llm.sampling.Vocabulary} - the bytes of a model's tokens, and the tokens
 *       that a grammar allows next
 * </ul>
 */
package org.djlx.llm.sampling;
