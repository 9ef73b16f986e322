/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/**
 * Times of collective operations, fused operators, transformer blocks, training steps and text
 * generation, on the CPU and on GPUs, beside other programs.
 */
package org.djlx.samples.bench;
