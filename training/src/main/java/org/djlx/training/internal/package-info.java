// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * FusedUpdates  updates of DJL's optimizers, one kernel per parameter
 * CpuUpdates    the kernels of the CPU
 * GpuUpdates    the kernels of a GPU
 */
/**
 * What the trainer, its strategies and its checkpoints share.
 *
 * <ul>
 *   <li>{@link org.djlx.training.internal.BlockReplacement} - replaces layers of a block
 *   <li>{@link org.djlx.training.internal.DataTypes} - element types that DJL cannot name
 *   <li>{@link org.djlx.training.internal.EvaluatorSums} - sums of DJL's evaluators in an epoch
 *   <li>{@link org.djlx.training.internal.FailureOfAllRanks} - an error that all ranks throw at the
 *       same point; the trainer stays usable
 *   <li>{@link org.djlx.training.internal.ForwardPass} - forward passes of a block, and cuts of
 *       their graph
 *   <li>{@link org.djlx.training.internal.LocalParameter} - a parameter and a rank's array of it
 *   <li>{@link org.djlx.training.internal.OptimizerState} - the state of an optimizer, such as
 *       Adam's means
 *   <li>{@link org.djlx.training.internal.PrivateFields} - fields that DJL keeps state in
 *   <li>{@link org.djlx.training.internal.Ranks} - replicas, threads and process groups of a
 *       trainer
 *   <li>{@link org.djlx.training.internal.RankStore} - gives blocks a rank's arrays
 *   <li>{@link org.djlx.training.internal.RankWorkers} - one thread per rank
 *   <li>{@link org.djlx.training.internal.Recomputation} - computes a block again in the backward
 *       pass
 *   <li>{@link org.djlx.training.internal.Replica} - one rank: device and whole parameters
 *   <li>{@link org.djlx.training.internal.SyncBatchNorm} - batch normalisation over the rows of all
 *       ranks
 *   <li>{@link org.djlx.training.internal.WrapperBlock} - a block that computes another one in its
 *       own way
 * </ul>
 */
package org.djlx.training.internal;
