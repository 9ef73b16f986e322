// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.List;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.TestArrays;
import org.djlx.collectives.Work;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.torch.CudaStreamGuard;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Work of the caller on the group's stream. */
@Tag("gpu")
@Timeout(120)
class CudaP2pGroupStreamTest {

    private int ranks;

    @BeforeEach
    void requireGpu() {
        ranks = P2pRanks.require();
    }

    /** Small sums run by kernels, on the group's stream or on the caller's. */
    @ParameterizedTest
    @ValueSource(booleans = {true, false})
    void worksRunBetweenTheOperationsIssuedBeforeAndAfter(boolean asyncOp) {
        List<ProcessGroup> groups =
                ProcessGroups.local("cuda_p2p", ranks, P2pRanks.options().build());
        P2pBuffers first = groups.get(0).requireP2pBuffers();
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        P2pRanks.run(group, () -> sumTwice(group, asyncOp));
                        return null;
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
        assertThrows(IllegalStateException.class, () -> first.onGroupStream(stream -> {}));
    }

    private static void sumTwice(ProcessGroup group, boolean asyncOp) {
        P2pBuffers buffers = group.requireP2pBuffers();
        int n = group.worldSize();
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
            for (int round = 0; round < 20; round++) {
                NDArray sum = manager.ones(new Shape(200_000));
                group.allReduce(sum, ReduceOp.SUM, asyncOp);
                buffers.onGroupStream(stream -> twice(sum, stream));
                Work last = group.allReduce(sum, ReduceOp.SUM, asyncOp);
                last.await();
                assertEquals(2 * n * n, TestArrays.awaited(sum.min()).getFloat());
                assertEquals(2 * n * n, TestArrays.awaited(sum.max()).getFloat());
            }
        }
    }

    private static void twice(NDArray array, CudaStream stream) {
        CudaStreamGuard guard = Torch.cudaStreamGuard(array.getDevice(), stream.handle());
        try {
            array.muli(2);
        } finally {
            guard.close();
        }
    }
}
