/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/**
 * DJL's PyTorch engine with models on several ranks. A plus marks what users name.
 *
 * <pre>
 * + P2pEngine             the engine, {@code PyTorch-P2P}: how ranks come about, and what they do
 * + P2pEngineProvider     finds it
 * + DataParallelConfig    a training configuration that says more of the ranks
 * + GradientReduction     how the gradients of processes become one
 * + GradientCompression   as what gradients go from rank to rank
 * + GradientSynchronizer  makes gradients one in programs that keep the engine PyTorch
 * + DistributedSampler    divides a dataset among processes
 * + CheckpointManager     saves a job's state, and has it go on from there
 * + TrainingProgress      how far a job has come
 * + DividedBlock          a block whose parameters are divided among ranks; for blocks of your own
 * + ParallelModelLoader   loads models that are divided among ranks; for loaders of your own
 * + ParallelModel         what it loads
 * + TorchThreads          chooses libtorch's threads of a CPU rank
 *   ParallelPredictor     hands requests to that
 *   P2pModel              a model of PyTorch's, but for its trainer
 *   DataParallelTrainer   the trainer
 *   SplitForward          one forward pass on the parts of a batch, and the way back
 *   StagedForward         one rank's forward pass, cut where gradients are complete on the way back
 *   GradientBuckets       gradients that are reduced at once
 *   Replica               one rank's parameters
 *   FusedUpdates          DJL's optimizers on a GPU, by one kernel a parameter
 *   RankWorkers           a thread for each rank
 *   ParameterChecksum     compares parameters
 *   CheckpointFile        arrays in a file, with a checksum
 *   OptimizerState        what an optimizer keeps from step to step
 *   ArrayBytes            the bytes of arrays of all types
 *   Agreement             has all ranks fail when one does
 * </pre>
 */
package org.djlx.collectives.engine;
