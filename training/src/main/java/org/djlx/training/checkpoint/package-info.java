// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * CheckpointDirectory  file names, retention, and detection of other jobs that write
 * CheckpointFile       arrays in a file, with a checksum
 * CheckpointParts      reads a checkpoint of one file or several
 * CheckpointProtocol   has all ranks save or restore the same step, or all fail
 * CheckpointSave       the arrays and metadata that a process writes
 * EpochSums            sums of DJL's evaluators in the current epoch
 * JobState             the metadata of a checkpoint
 * RandomSeed           the seed of a process
 * Termination          whether this process was sent SIGTERM
 * TrainerArrays        a trainer's parameters and optimizer state
 */
/**
 * Saves the state of a training job and resumes from it. Start with {@link
 * org.djlx.training.checkpoint.CheckpointManager}.
 *
 * <ul>
 *   <li>{@link org.djlx.training.checkpoint.CheckpointManager} - saves and restores the state of a
 *       job
 *   <li>{@link org.djlx.training.checkpoint.TrainingProgress} - updates, epochs and batches of a
 *       job
 * </ul>
 */
package org.djlx.training.checkpoint;
