/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/**
 * From logits to tokens: sampling parameters and the sampler.
 *
 * <ul>
 *   <li>{@link org.djlx.fusedops.llm.sampling.Logits} - the logits of the next tokens of several
 *       sequences
 *   <li>{@link org.djlx.fusedops.llm.sampling.LogitsReader} - reads logits and samples tokens
 *   <li>{@link org.djlx.fusedops.llm.sampling.Sampler} - samples the next token of a sequence from
 *       its logits
 *   <li>{@link org.djlx.fusedops.llm.sampling.SamplingParameters} - temperature, top-p and seed as
 *       ranks use them
 * </ul>
 */
package org.djlx.fusedops.llm.sampling;
