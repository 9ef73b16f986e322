// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.strategy;

/** When the ranks reduce the gradients of a backward pass. */
public enum ReductionTime {
    /** Bucket by bucket, while the pass computes gradients of earlier layers. */
    WITHIN_PASS,
    /** At the end of the pass, because only some ranks have begun its forward pass. */
    AFTER_PASS,
    /**
     * After a later pass or in the step: {@link org.djlx.training.DataParallelTrainer#noSync} is
     * open.
     */
    LATER
}
