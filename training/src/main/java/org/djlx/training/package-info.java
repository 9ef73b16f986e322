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
 * with {@link org.djlx.training.DataParallelConfig}.
 *
 * <ul>
 *   <li>{@link org.djlx.training.ActivationCheckpoint} - a block that the backward pass computes
 *       again, to keep less memory
 *   <li>{@link org.djlx.training.DataParallelConfig} - training configuration with options for
 *       ranks
 *   <li>{@link org.djlx.training.DataParallelTrainer} - the trainer
 *   <li>{@link org.djlx.training.DistributedSampler} - divides a dataset among processes
 *   <li>{@link org.djlx.training.EvaluatorSums} - the sums that evaluators have of an epoch
 *   <li>{@link org.djlx.training.GradScaler} - scales gradients for float16, and skips steps whose
 *       gradients are infinite
 *   <li>{@link org.djlx.training.GradientCompression} - the format in which gradients are sent
 *   <li>{@link org.djlx.training.GradientReduction} - sum or mean of the gradients of processes
 *   <li>{@link org.djlx.training.GradientSynchronizer} - all-reduces gradients in programs that
 *       keep the engine PyTorch
 *   <li>{@link org.djlx.training.JoinListener} - a listener that takes part in batches of other
 *       processes
 *   <li>{@link org.djlx.training.MixedPrecisionPolicy} - the type of products and convolutions
 *   <li>{@link org.djlx.training.OptimizerState} - the state of an optimizer, such as Adam's means
 *   <li>{@link org.djlx.training.P2pTrainerFactory} - makes the engine's trainers
 *   <li>{@link org.djlx.training.Replica} - one rank's parameters
 *   <li>{@link org.djlx.training.ShardingStrategy} - what data-parallel ranks divide
 * </ul>
 *
 * <h2>Several ranks in one JVM</h2>
 *
 * <p>The ranks share each batch and its loss. Each rank has a thread and a copy of the parameters.
 * CPU ranks of a float32 model of up to 2 MiB have no copies: all use the block's own arrays.
 *
 * <ul>
 *   <li>{@code trainer.forward} divides the batch along its first dimension and concatenates the
 *       ranks' predictions on the first device, along the dimension in which the ranks' shapes
 *       differ from one rank's. Loss and metrics are computed there, with the same values as on one
 *       device.
 *   <li>The backward pass sums the ranks' gradients in buckets; {@code trainer.step} updates each
 *       rank's parameters. In a {@code SequentialBlock}, nested ones included, the buckets of later
 *       blocks are reduced while the backward pass of earlier blocks runs. All gradients are
 *       reduced when the collector's {@code backward} returns. {@link DataParallelTrainer#noSync}
 *       postpones the reduction.
 *   <li>The gradients do not depend on the number of ranks. With DJL's own engines each device has
 *       its own loss, so the sum over devices of a mean loss grows with their number.
 *   <li>Between backward pass and step {@code getGradient()} returns the gradient of all ranks.
 *       Changes to it in place, such as clipping by the norm, reach all ranks, and so does a
 *       further {@code backward}, such as that of a penalty on parameters. With {@code FULL_SHARD}
 *       no rank has whole gradients, and {@code getGradient()} throws; use {@link
 *       DataParallelTrainer#clipGradNorm} or {@link DataParallelTrainer#clipGradValue}.
 *   <li>Values that the program writes to a parameter between steps, such as initial or clamped
 *       weights, are copied to all ranks. Arrays that replace a parameter's array stay when the
 *       trainer is closed.
 *   <li>Batch normalisation uses the rows of all ranks ({@link
 *       DataParallelConfig#optSyncBatchNorm}). A rank without rows, in a short last batch, computes
 *       a row that counts for nothing.
 *   <li>An array whose first dimension is not the batch, such as a mask or a number, goes whole to
 *       each rank. A prediction without the batch, such as a mean loss, is the ranks' mean,
 *       weighted by their rows.
 *   <li>The first forward pass, and the first evaluation, check that the ranks' predictions equal
 *       those of one rank, and that the block keeps no state in fields between passes ({@link
 *       DataParallelConfig#optCheckForward}). {@code forward} throws {@code
 *       IllegalArgumentException} otherwise.
 *   <li>Open {@code trainer.newGradientCollector()}. With the collector of {@code
 *       manager.getEngine()}, {@code forward} throws {@code IllegalStateException}. Within another
 *       trainer's collector, or a {@code GradientScope}, the end of its {@code backward} reduces
 *       the gradients; with a {@code GradScaler} that throws {@code IllegalStateException}.
 *   <li>All ranks that have copies of the parameters call the same optimizer at the same time,
 *       under different parameter ids. {@code newTrainer} refuses a learning rate per parameter
 *       ({@code FixedPerVarTracker}). If another trainer used the optimizer before, the state of
 *       DJL's optimizers is copied from the first rank to the other ranks. Give each trainer a new
 *       instance of your own optimizers.
 *   <li>Dropout and other random operators draw from one generator per JVM, in no fixed order.
 * </ul>
 *
 * <h2>Processes</h2>
 *
 * <p>Each process has its own batches and loss; {@link DistributedSampler} divides a dataset among
 * them.
 *
 * <ul>
 *   <li>Gradients are averaged, as by PyTorch's DDP; {@link GradientReduction} sets {@code SUM} for
 *       losses that are sums.
 *   <li>Batch normalisation uses the rows of all processes. With {@link DataParallelConfig#optJoin}
 *       processes may have different numbers of batches.
 *   <li>At the end of an epoch of {@code EasyTrain}, loss and evaluators are those of all
 *       processes, on each of them, so {@code TrainingResult} is that of the whole job. For
 *       evaluators that are not known to be sums, processes keep labels and predictions of an
 *       epoch. If a listener throws {@code EarlyStoppedException} in {@code onEpoch}, it is thrown
 *       in all processes, after all listeners were called. Metrics of single batches are those of
 *       the process.
 *   <li>All processes call {@code Model.save}; only rank 0 writes the file. Only rank 0 calls DJL's
 *       {@code LoggingTrainingListener}, {@code TimeMeasureTrainingListener} and {@code
 *       MemoryTrainingListener}.
 *   <li>If the block's parameters are divided among ranks ({@link
 *       org.djlx.collectives.engine.DividedBlock}), rank 0 of both groups saves and logs. The other
 *       ranks of the divided block send their parts in {@code Model.save}; they return after the
 *       file is written, and fail if the file cannot be written.
 *   <li>When {@code backward} returns, gradients are those of all processes, as above. All
 *       processes must change them alike; otherwise parameters differ, and {@code trainer.close()}
 *       reports it.
 * </ul>
 *
 * <h2>Parameters</h2>
 *
 * <p>Rank 0's parameters are broadcast when the trainer is initialised, or before the first forward
 * pass if the model already is. They are compared then, and again when the trainer is closed.
 *
 * <p>On GPUs, DJL's {@code Sgd}, {@code Adam} and {@code AdamW} update a float32 parameter by one
 * kernel, with the same result. After a step a float32 parameter has no gradient array. Exception:
 * an array from {@code getGradient()} that is still open stays, and is zero. Later calls of {@code
 * getGradient()} return new zeros, which the caller closes.
 */
package org.djlx.training;
