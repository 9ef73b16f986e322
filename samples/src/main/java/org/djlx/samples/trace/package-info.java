// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * TracedBackend - a backend whose buffers record the steps of an operator
 * TracedBuffers - its buffers
 * TracedStream - a stream that records when its steps run
 * TracedCudaStream - such a stream on a GPU
 * TracedHostStream - such a stream on the CPU
 * Steps - the recorded steps of a rank
 * Span - one step
 * TraceFile - writes steps for Perfetto
 */
/**
 * Traces the steps of a fused operator on all ranks, to show which steps overlap.
 *
 * <ul>
 *   <li>{@link org.djlx.samples.trace.TraceCommand} - {@code trace}
 * </ul>
 */
package org.djlx.samples.trace;
