/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/* Package-private:
 * P2pModel           a model of PyTorch's, but for its trainer
 * ParallelPredictor  hands requests to that
 */
/**
 * The DJL engine {@code PyTorch-P2P}: models that are loaded on several ranks. Start with {@link
 * org.djlx.collectives.engine.P2pEngine}.
 *
 * <ul>
 *   <li>{@link org.djlx.collectives.engine.P2pEngine} - the engine, {@code PyTorch-P2P}: how ranks
 *       come about, and what they do
 *   <li>{@link org.djlx.collectives.engine.P2pEngineProvider} - finds it
 *   <li>{@link org.djlx.collectives.engine.ParallelModel} - what it loads
 *   <li>{@link org.djlx.collectives.engine.ParallelModelLoader} - loads models that are divided
 *       among ranks; for loaders of your own
 * </ul>
 */
package org.djlx.collectives.engine;
