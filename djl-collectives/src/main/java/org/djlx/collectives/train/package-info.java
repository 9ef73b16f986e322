// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * Autocast           layers that compute in the type of a MixedPrecisionPolicy
 * BlockReplacement   replaces layers of a block
 * FailureOfAllRanks  an error that no rank waits after
 * FullyShard         one rank's shards of the parameters
 * FusedUpdates       updates of DJL's optimizers on a GPU, one kernel per parameter
 * GradientBuckets    reduces gradients in buckets
 * JobEvaluators      loss and evaluators of an epoch over processes
 * JobListeners       listeners of one of several processes
 * RankWorkers        one thread per rank
 * Recomputation      computes a block again in the backward pass
 * SplitCheck         whether a batch can be divided among ranks
 * SplitForward       forward and backward pass of all ranks on the parts of a batch
 * StagedForward      forward pass of one rank, cut between the blocks of a SequentialBlock
 * SyncBatchNorm      batch normalisation over the rows of all ranks
 * TrainerSetup       what a configuration means for a process, and what it refuses
 * UnevenBatches      processes with different numbers of batches
 */
/**
 * Data-parallel and tensor-parallel training: trainer, gradient buckets, distributed sampler. Start
 * with {@link org.djlx.collectives.train.DataParallelConfig}.
 *
 * <ul>
 *   <li>{@link org.djlx.collectives.train.ActivationCheckpoint} - a block that the backward pass
 *       computes again, to keep less memory
 *   <li>{@link org.djlx.collectives.train.Agreement} - makes all ranks fail if one fails
 *   <li>{@link org.djlx.collectives.train.DataParallelConfig} - training configuration with options
 *       for ranks
 *   <li>{@link org.djlx.collectives.train.DataParallelTrainer} - the trainer
 *   <li>{@link org.djlx.collectives.train.DistributedSampler} - divides a dataset among processes
 *   <li>{@link org.djlx.collectives.train.DividedBlock} - a block whose parameters are divided
 *       among ranks; for blocks of your own
 *   <li>{@link org.djlx.collectives.train.EvaluatorSums} - the sums that evaluators have of an
 *       epoch
 *   <li>{@link org.djlx.collectives.train.GradScaler} - scales gradients for float16, and skips
 *       steps whose gradients are infinite
 *   <li>{@link org.djlx.collectives.train.GradientCompression} - the format in which gradients are
 *       sent
 *   <li>{@link org.djlx.collectives.train.GradientReduction} - sum or mean of the gradients of
 *       processes
 *   <li>{@link org.djlx.collectives.train.GradientSynchronizer} - all-reduces gradients in programs
 *       that keep the engine PyTorch
 *   <li>{@link org.djlx.collectives.train.JoinListener} - a listener that takes part in batches of
 *       other processes
 *   <li>{@link org.djlx.collectives.train.MixedPrecisionPolicy} - the type of products and
 *       convolutions
 *   <li>{@link org.djlx.collectives.train.OptimizerState} - the state of an optimizer, such as
 *       Adam's means
 *   <li>{@link org.djlx.collectives.train.Replica} - one rank's parameters
 *   <li>{@link org.djlx.collectives.train.ShardingStrategy} - what data-parallel ranks divide
 * </ul>
 */
package org.djlx.collectives.train;
