// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.strategy;

import org.djlx.collectives.Work;

/**
 * How gradients are reduced among ranks, as a communication hook of PyTorch's DDP: a bucket in, a
 * {@link Work} out. Plain DDP is
 *
 * <pre>{@code
 * config.optGradientHook(
 *         bucket -> bucket.group().allReduceCoalesced(bucket.gradients(), bucket.op()));
 * }</pre>
 *
 * <ul>
 *   <li>All ranks call {@link #reduce} with the same buckets in the same order, while the backward
 *       pass computes the gradients of later buckets; then {@link #finish} in that order.
 *   <li>After {@code finish}, {@link GradientBucket#gradients()} must hold the same values on all
 *       ranks; parameters that differ between ranks are an error when the trainer is closed.
 *   <li>Each rank calls it on a thread of its own, without recording gradients.
 *   <li>What it throws, {@code step} or {@code backward} throws.
 *   <li>A trainer with one rank calls no hook.
 * </ul>
 *
 * @see org.djlx.training.DataParallelConfig#optGradientHook
 */
@FunctionalInterface
public interface GradientHook {

    /**
     * Starts to reduce a bucket. Should not wait, so that the backward pass goes on. The tensors of
     * the returned work must stay open until it has completed.
     */
    Work reduce(GradientBucket bucket);

    /**
     * Writes the reduced gradients to the bucket, unless {@link #reduce} does so in place. It may
     * run further collectives and wait for them.
     *
     * @param sent the work of {@code reduce}; it has completed, or on a GPU the current stream
     *     waits for it
     */
    default void finish(GradientBucket bucket, Work sent) {}

    /**
     * {@return the hook of one rank} A hook that keeps state between steps returns a new object:
     * ranks of one JVM must not share it. Called when the trainer is initialised.
     */
    default GradientHook ofRank() {
        return this;
    }

    /** {@return its name and options, for the log; they must be the same on all ranks} */
    default String name() {
        return "own";
    }
}
