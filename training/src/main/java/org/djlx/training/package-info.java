// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * Autocast           layers that compute in the type of a MixedPrecisionPolicy
 * BackwardPasses     which backward passes are open, and when their gradients are reduced
 * BatchPasses        forward passes of batches, and the check of the first one
 * BlockReplacement   replaces layers of a block
 * FailureOfAllRanks  an error that all ranks throw at the same point; the trainer stays usable
 * FullySharded       strategy FSDP: ranks divide parameters, gradients and optimizer state
 * FusedUpdates       updates of DJL's optimizers on a GPU, one kernel per parameter
 * GradientBuckets    reduces gradients in buckets
 * GradientNorm       the norm of gradients that are divided among ranks
 * JobEvaluators      loss and evaluators of an epoch over processes
 * JobListeners       one process's listeners; early stopping of all processes
 * OneMemory          strategy: ranks of a JVM share the parameters of a small model
 * OptimizerStep      unscales, clips and applies reduced gradients
 * Overflow           whether scaled gradients are finite
 * ParameterStrategy  how ranks hold parameters, gradients and the optimizer's state
 * RankOfProcess      the one rank of this JVM among several processes
 * RankShards         one rank's FSDP shards: starts all-gathers and reduce-scatters, stage by stage
 * RankStore          gives blocks a rank's arrays
 * RankWorkers        one thread per rank
 * Ranks              replicas, threads and process groups of a trainer
 * RanksOfJvm         all ranks of a job, in this JVM
 * Recomputation      computes a block again in the backward pass
 * ReductionTime      when gradients of a backward pass are reduced
 * Replicated         strategy DDP: each rank has all parameters
 * ShardedOptimizer   strategy ZeRO stage 1: ranks divide the optimizer's state
 * SplitCheck         whether a batch can be divided among ranks
 * SplitForward       forward and backward pass of all ranks on the parts of a batch
 * StagedForward      forward pass of one rank, cut between the blocks of a SequentialBlock
 * SyncBatchNorm      batch normalisation over the rows of all ranks
 * TrainerSetup       checks a configuration, and derives a process's ranks and options from it
 * UnevenBatches      processes with different numbers of batches
 * WholeParameters    base class of strategies that keep whole parameters on each rank
 */
/**
 * Data-parallel and tensor-parallel training: trainer, gradient buckets, distributed sampler. Start
 * with {@link org.djlx.training.DataParallelConfig}.
 *
 * <ul>
 *   <li>{@link org.djlx.training.ActivationCheckpoint} - a block that the backward pass computes
 *       again, to keep less memory
 *   <li>{@link org.djlx.training.DataParallelConfig} - training configuration with options for
 *       ranks
 *   <li>{@link org.djlx.training.DataParallelTrainer} - the trainer
 *   <li>{@link org.djlx.training.DistributedSampler} - divides a dataset among processes
 *   <li>{@link org.djlx.training.EvaluatorSums} - sums of DJL's evaluators in an epoch
 *   <li>{@link org.djlx.training.GradScaler} - scales gradients for float16, and skips steps whose
 *       gradients are infinite
 *   <li>{@link org.djlx.training.GradientCompression} - the format in which gradients are sent
 *   <li>{@link org.djlx.training.GradientReduction} - sum or mean of the gradients of processes
 *   <li>{@link org.djlx.training.GradientSynchronizer} - all-reduces gradients in programs that
 *       keep the engine PyTorch
 *   <li>{@link org.djlx.training.JoinListener} - a listener that takes part in batches of other
 *       processes
 *   <li>{@link org.djlx.training.LocalParameter} - a parameter and a rank's array of it
 *   <li>{@link org.djlx.training.MixedPrecisionPolicy} - the type of matmuls and convolutions
 *   <li>{@link org.djlx.training.OptimizerState} - the state of an optimizer, such as Adam's means
 *   <li>{@link org.djlx.training.P2pTrainerFactory} - makes the engine's trainers
 *   <li>{@link org.djlx.training.ParameterShard} - a part of a parameter that a rank holds
 *   <li>{@link org.djlx.training.Replica} - one rank: device and whole parameters
 *   <li>{@link org.djlx.training.ShardingStrategy} - what data-parallel ranks divide
 * </ul>
 *
 * <p>Programs call a trainer from one thread. What they can rely on: docs/training.md.
 */
package org.djlx.training;
