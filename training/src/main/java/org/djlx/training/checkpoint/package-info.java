// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * CheckpointFile   arrays in a file, with a checksum
 * CheckpointParts  reads a checkpoint of one file or several
 * CheckpointSave   what a process writes for a checkpoint
 * EpochSums        loss and evaluators of the current epoch
 * Termination      whether this process was sent SIGTERM
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
