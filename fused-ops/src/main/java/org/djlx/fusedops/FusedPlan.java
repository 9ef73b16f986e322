/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops;

/**
 * Everything about a call of a fused operator that its shapes, strides, type and dimension decide:
 * made once, then only enqueued. Used by one thread at a time.
 */
interface FusedPlan extends AutoCloseable {

    /** Whether another path is taken by calls that are recorded into a graph. */
    boolean isOtherwiseRecorded();

    /** Frees it; nothing that it has enqueued needs it any more. */
    @Override
    void close();
}
