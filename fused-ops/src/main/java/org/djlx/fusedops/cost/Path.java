/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.cost;

import java.util.Locale;

/**
 * The ways in which a fused operator is run. Where predictions do not tell two apart, that which is
 * named first is taken: a library's matmul is as good on any shape.
 */
public enum Path {
    /** All data from GPU to GPU by one kernel, and one matmul after or before it. */
    GATHERED,
    /** One kernel pushes, waits and multiplies, where GPUs and shapes allow it. */
    FUSED,
    /** Matmuls of parts and copies beside them, which a schedule orders. */
    PIPELINED,
    /** A collective of the group, on GPUs by NCCL, and one matmul after or before it. */
    NCCL;

    /** Returns the name as text has it: lower case, with blanks. */
    @Override
    public String toString() {
        return name().toLowerCase(Locale.ROOT).replace('_', ' ');
    }
}
