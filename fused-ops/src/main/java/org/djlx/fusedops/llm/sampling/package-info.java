// SPDX-License-Identifier: Apache-2.0
/**
 * Sampling: logits in, tokens out.
 *
 * <ul>
 *   <li>{@link org.djlx.fusedops.llm.sampling.LogitEdits} - penalties, biases and allowed tokens of
 *       one token
 *   <li>{@link org.djlx.fusedops.llm.sampling.Logits} - the logits of several sequences, on the
 *       device
 *   <li>{@link org.djlx.fusedops.llm.sampling.Sampler} - samples the next token of a sequence
 *   <li>{@link org.djlx.fusedops.llm.sampling.SamplingParameters} - how one token is sampled
 * </ul>
 */
package org.djlx.fusedops.llm.sampling;
