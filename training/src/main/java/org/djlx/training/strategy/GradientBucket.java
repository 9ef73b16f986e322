// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.strategy;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import java.util.List;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;

/**
 * Gradients that are reduced together, as c10d's {@code GradBucket}.
 *
 * @param index its number in the backward pass, from 0, the same on all ranks
 * @param parameters this rank's arrays of the parameters: the same objects in each step
 * @param gradients their gradients on this rank, all of one type, to be reduced in place; zeros
 *     where this rank's forward pass did not use the parameter
 * @param group this rank's handle on the group of all ranks
 * @param op what the result should be: the sum for ranks of one JVM, which compute one loss
 *     together; for processes as {@link org.djlx.training.DataParallelConfig#optGradientReduction}
 * @param manager for arrays of the hook that live until the trainer is closed
 */
public record GradientBucket(
        int index,
        List<NDArray> parameters,
        List<NDArray> gradients,
        ProcessGroup group,
        ReduceOp op,
        NDManager manager) {}
