/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/**
 * Training with DJL: a language model over the bytes of a text, on several ranks. *
 *
 * <pre>
 *   TrainCommand  the command
 *   TrainJob      one rank of a training
 *   LossCurve     losses over steps, kept and drawn
 * </pre>
 */
package org.djlx.samples.train;
