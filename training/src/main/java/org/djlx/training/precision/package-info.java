// SPDX-License-Identifier: Apache-2.0
/**
 * Mixed precision and activation checkpoints.
 *
 * <ul>
 *   <li>{@link org.djlx.training.precision.ActivationCheckpoint} - a block that the backward pass
 *       computes again, to keep less memory
 *   <li>{@link org.djlx.training.precision.Autocast} - layers that compute in the type of a policy
 *   <li>{@link org.djlx.training.precision.GradScaler} - scales gradients for float16, and skips
 *       steps whose gradients are infinite
 *   <li>{@link org.djlx.training.precision.MixedPrecisionPolicy} - the type of matmuls and
 *       convolutions
 * </ul>
 */
package org.djlx.training.precision;
