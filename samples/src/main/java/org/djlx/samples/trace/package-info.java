/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/** The steps of a fused operator on all ranks, as a trace in which one sees what overlaps. */
package org.djlx.samples.trace;
