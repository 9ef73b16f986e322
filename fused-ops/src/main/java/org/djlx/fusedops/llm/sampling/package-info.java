// SPDX-License-Identifier: Apache-2.0
/**
 * Sampling: logits in, tokens out.
 *
 * <ul>
 *   <li>{@link org.djlx.fusedops.llm.sampling.Logits} - the logits of several sequences, on the
 *       device
 *   <li>{@link org.djlx.fusedops.llm.sampling.Sampler} - samples the next token of a sequence
 *   <li>{@link org.djlx.fusedops.llm.sampling.SamplingParameters} - temperature, top-k, top-p and
 *       random bits of one token, for sampling on the device
 * </ul>
 */
package org.djlx.fusedops.llm.sampling;
