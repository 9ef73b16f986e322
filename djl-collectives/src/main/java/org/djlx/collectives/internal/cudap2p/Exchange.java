// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import java.time.Duration;
import org.djlx.collectives.ReduceOp;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.torch.ScalarType;

/** Enqueues collectives on a stream: by kernels or by copy engines. Sizes are in bytes. */
interface Exchange {

    /** How a collective runs; with {@code few}, kernels leave SMs to computation beside them. */
    record Run(CudaStream stream, Duration timeout, boolean few) {}

    /**
     * Enqueues an all-gather to each rank's part, of the same size. The place is the offset of the
     * gathered parts in the P2P memory of all ranks, in its heap; -1 if they lie elsewhere.
     */
    void gather(Run run, long input, long[] outputs, long byteSize, long place);

    void broadcast(Run run, long tensor, long byteSize, int root);

    /** Enqueues a reduce-scatter of the parts for each rank, each of the output's size. */
    void reduceScatter(
            Run run, long[] inputs, long output, long count, ScalarType type, ReduceOp op);
}
