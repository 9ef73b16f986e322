// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

/** When the ranks reduce the gradients of a backward pass. */
enum ReductionTime {
    /** Bucket by bucket, while the pass computes gradients of earlier layers. */
    WITHIN_PASS,
    /** At the end of the pass, because only some ranks have begun its forward pass. */
    AFTER_PASS,
    /** After a later pass or in the step: {@link DataParallelTrainer#noSync} is open. */
    LATER
}
