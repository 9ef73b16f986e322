// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

/** Whether gradients with the scale of a {@link GradScaler} have overflowed, on any rank. */
enum Overflow {
    /** Not known: the gradients still have the scale. */
    UNCHECKED,
    /** All gradients are finite, and divided by the scale. */
    NONE,
    /** A gradient is infinite or NaN, so the step is skipped. */
    FOUND
}
