/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/* Package-private:
 * FusedUpdates       DJL's optimizers on a GPU, by one kernel a parameter
 * GradientBuckets    gradients that are reduced at once
 * ParameterChecksum  compares parameters
 * RankWorkers        a thread for each rank
 * SplitForward       one forward pass on the parts of a batch, and the way back
 * StagedForward      one rank's forward pass, cut where gradients are complete on the way back
 */
/**
 * Data-parallel and tensor-parallel training: trainer, gradient buckets, distributed sampler. Start
 * with {@link org.djlx.collectives.train.DataParallelConfig}.
 *
 * <ul>
 *   <li>{@link org.djlx.collectives.train.Agreement} - has all ranks fail when one does
 *   <li>{@link org.djlx.collectives.train.DataParallelConfig} - a training configuration that says
 *       more of the ranks
 *   <li>{@link org.djlx.collectives.train.DataParallelTrainer} - the trainer
 *   <li>{@link org.djlx.collectives.train.DistributedSampler} - divides a dataset among processes
 *   <li>{@link org.djlx.collectives.train.DividedBlock} - a block whose parameters are divided
 *       among ranks; for blocks of your own
 *   <li>{@link org.djlx.collectives.train.GradientCompression} - as what gradients go from rank to
 *       rank
 *   <li>{@link org.djlx.collectives.train.GradientReduction} - how the gradients of processes
 *       become one
 *   <li>{@link org.djlx.collectives.train.GradientSynchronizer} - makes gradients one in programs
 *       that keep the engine PyTorch
 *   <li>{@link org.djlx.collectives.train.OptimizerState} - what an optimizer keeps from step to
 *       step
 *   <li>{@link org.djlx.collectives.train.Replica} - one rank's parameters
 * </ul>
 */
package org.djlx.collectives.train;
