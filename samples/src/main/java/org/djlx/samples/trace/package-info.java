/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/**
 * The steps of a fused operator on all ranks, as a trace in which one sees what overlaps. *
 *
 * <pre>
 *   TraceCommand      the command
 *   TracedBackend     another backend, whose buffers note what an operator does with them
 *   TracedBuffers     those buffers
 *   TracedStream      a stream that does what another does, and notes when
 *   TracedCudaStream  one on a GPU
 *   TracedHostStream  one on the CPU
 *   Steps             the steps that the streams of a rank note
 *   Timeline          when a stream is at a point
 *   Span              something that a stream did
 *   TraceFile         spans as a file for Perfetto
 * </pre>
 */
package org.djlx.samples.trace;
