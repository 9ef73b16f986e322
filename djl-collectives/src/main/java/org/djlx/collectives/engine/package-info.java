// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * P2pModel           DJL's PyTorch model, except for trainer, saving and loading
 * P2pModelZoo        DJL's PyTorch models for the engine PyTorch-P2P
 * ParallelPredictor  passes requests to a ParallelModel
 */
/**
 * The DJL engine {@code PyTorch-P2P}: models that are trained, or loaded, on several ranks. Start
 * with {@link P2pEngine}.
 *
 * <ul>
 *   <li>{@link DividedBlock} - a block whose parameters are divided among ranks; for blocks of your
 *       own
 *   <li>{@link P2pEngine} - the engine; describes ranks and loading
 *   <li>{@link P2pEngineProvider} - provides the engine to DJL
 *   <li>{@link ParallelModel} - a model on several ranks
 *   <li>{@link ParallelModelLoader} - interface of loaders for models that are divided among ranks;
 *       you can add your own
 *   <li>{@link TrainerFactory} - creates trainers; implemented by the module training
 * </ul>
 */
package org.djlx.collectives.engine;
