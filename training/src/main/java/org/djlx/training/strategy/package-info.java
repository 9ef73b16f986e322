// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * FlatParameter     parameters of a stage in a row, and this rank's shard of it
 * FullySharded      FSDP: ranks divide parameters, gradients and optimizer state
 * GradientBuckets   reduces gradients in buckets
 * GradientNorm      the norm of gradients that are divided among ranks
 * OneMemory         ranks of a JVM share the parameters on a CPU
 * ParameterSlot     memory in which stages are gathered one after the other
 * RankShards        one rank's FSDP shards: decides when stages are gathered, reduces their gradients
 * Replicated        DDP: each rank has all parameters
 * ShardedOptimizer  ZeRO stage 1: ranks divide the optimizer's state
 * ShardedStage      a block that is gathered as a whole: when its parameters are there
 * StageContext      what the stages of a rank share
 * StageTree         the stages of a model, with this rank's shards
 * StagedForward     forward pass of one rank, cut between the blocks of a SequentialBlock
 * UnshardedParameters  a stage's gathered parameters; issues the all-gather
 * WholeParameters   base class of strategies that keep whole parameters on each rank
 */
/**
 * How ranks hold parameters, gradients and the optimizer's state, and how they reduce gradients.
 *
 * <ul>
 *   <li>{@link org.djlx.training.strategy.FullyShard} - a block that fully sharded ranks gather at
 *       a time
 *   <li>{@link org.djlx.training.strategy.FullyShardPolicy} - how they divide and gather it
 *   <li>{@link org.djlx.training.strategy.GradientBucket} - gradients that are reduced together
 *   <li>{@link org.djlx.training.strategy.GradientCompression} - hooks that send gradients as they
 *       are, or rounded to bfloat16
 *   <li>{@link org.djlx.training.strategy.GradientHook} - how a bucket is reduced
 *   <li>{@link org.djlx.training.strategy.ParameterShard} - a part of a parameter that a rank holds
 *   <li>{@link org.djlx.training.strategy.ParameterStrategy} - what the trainer asks of a strategy
 *   <li>{@link org.djlx.training.strategy.PowerSgd} - a hook that sends low-rank factors
 *   <li>{@link org.djlx.training.strategy.ReductionTime} - when gradients of a backward pass are
 *       reduced
 *   <li>{@link org.djlx.training.strategy.ShardingStrategy} - what data-parallel ranks divide
 * </ul>
 *
 * <p>Programs name {@code ShardingStrategy}, {@code FullyShard}, its policy and the hooks only.
 */
package org.djlx.training.strategy;
