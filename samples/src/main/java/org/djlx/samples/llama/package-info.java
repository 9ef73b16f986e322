/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/**
 * Llamas: {@link org.djlx.samples.llama.ServeModelCommand} writes a small one of random weights,
 * {@link org.djlx.samples.llama.TrainedLlama} one that was trained, {@link
 * org.djlx.samples.llama.RandomLlama} one to measure with; {@link
 * org.djlx.samples.llama.GenerateCommand} has one write text.
 */
package org.djlx.samples.llama;
