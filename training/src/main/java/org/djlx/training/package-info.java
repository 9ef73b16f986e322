// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * BackwardPasses  which backward passes are open, and when their gradients are reduced
 * BatchPasses     forward passes of batches, and the check of the first one
 * ItemCount       the weights of a step's losses
 * JobEvaluators   loss and evaluators of an epoch over processes
 * JobListeners    one process's listeners; early stopping of all processes
 * OptimizerStep   unscales, clips and applies reduced gradients
 * RankOfProcess   the one rank of this JVM among several processes
 * RanksOfJvm      all ranks of a job, in this JVM
 * SplitCheck      whether a batch can be divided among ranks
 * SplitForward    forward and backward pass of all ranks on the parts of a batch
 * TrainerSetup    checks a configuration, and derives a process's ranks and options from it
 * UnevenBatches   processes with different numbers of batches
 */
/**
 * Training with the engine {@code PyTorch-P2P}: the trainer and its configuration. Start with
 * {@link org.djlx.training.DataParallelConfig}.
 *
 * <ul>
 *   <li>{@link org.djlx.training.DataParallelConfig} - training configuration with options for
 *       ranks
 *   <li>{@link org.djlx.training.DataParallelTrainer} - the trainer
 *   <li>{@link org.djlx.training.GradientReduction} - sum or mean of the gradients of processes
 *   <li>{@link org.djlx.training.GradientSynchronizer} - all-reduces gradients in programs that
 *       keep the engine PyTorch
 *   <li>{@link org.djlx.training.LossWeight} - the items that a batch's loss counts
 *   <li>{@link org.djlx.training.P2pTrainerFactory} - makes the engine's trainers
 * </ul>
 *
 * <p>Programs call a trainer from one thread. What they can rely on: docs/training.md.
 */
package org.djlx.training;
