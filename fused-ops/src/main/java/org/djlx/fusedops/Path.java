/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops;

/** The ways in which a fused operator is run. */
enum Path {
    /** By one kernel that pushes and multiplies, where GPUs and shapes allow it. */
    ONE_LAUNCH,
    /** By matmuls and copies that a schedule orders. */
    SCHEDULED,
    /** By a collective and a matmul, one after the other. */
    PLAIN
}
