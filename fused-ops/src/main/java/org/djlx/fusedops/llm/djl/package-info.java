/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/* Package-private:
 * LlamaService  serves DJL's requests by a generator
 */
/**
 * Loads a model directory as a DJL model, for {@code Criteria} and DJL Serving. Start with {@link
 * org.djlx.fusedops.llm.djl.LlamaLoader}.
 *
 * <ul>
 *   <li>{@link org.djlx.fusedops.llm.djl.LlamaLoader} - loads a model directory for DJL and DJL
 *       Serving
 *   <li>{@link org.djlx.fusedops.llm.djl.LoadingProgress} - says how loading goes
 * </ul>
 */
package org.djlx.fusedops.llm.djl;
