// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.gpu;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.time.Duration;
import java.util.List;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.DebugLevel;
import org.djlx.collectives.GpuTests;
import org.djlx.collectives.NcclOptions;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.TestLog;
import org.djlx.collectives.internal.host.LongWaits;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.nativeops.NativeLibrary;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Warnings about an operation that waits for a peer, which calls only after the warning. */
@Tag("gpu")
@Timeout(120)
class LongWaitsGpuTest {

    private static NcclOptions.Builder options() {
        return NcclOptions.builder().optWarnAfter(Duration.ofMillis(1));
    }

    @Test
    void ncclLogsWithoutNamesOfMissingRanks() throws InterruptedException {
        String message = messageOf("nccl", options().build());
        assertTrue(message.contains("still waiting for other ranks or its GPU after"), message);
        assertTrue(message.contains("TORCH_DISTRIBUTED_DEBUG=DETAIL"), message);
    }

    @Test
    void verificationLogsMissingRanks() throws InterruptedException {
        String message = messageOf("nccl", options().optDebug(DebugLevel.DETAIL).build());
        assertTrue(message.contains("on rank 0: still waiting for rank 1 after"), message);
    }

    @Test
    void cudaP2pLogsMissingRanks() throws InterruptedException {
        CudaP2pOptions options = CudaP2pOptions.builder().optNcclOptions(options().build()).build();
        String message = messageOf("cuda_p2p", options);
        assertTrue(message.contains("still waiting for rank 1 after"), message);
    }

    /** Returns the warning about rank 0's second all-reduce, which rank 1 has not called. */
    private static String messageOf(String backend, BackendOptions options)
            throws InterruptedException {
        GpuTests.require(2, NativeLibrary.NCCL, NativeLibrary.NVRTC);
        List<ProcessGroup> groups = ProcessGroups.local(backend, 2, options);
        String call = "allReduce(float32, (2), SUM) #2 of group '" + groups.get(0).name() + "'";
        try (TestLog log = new TestLog(LongWaits.class)) {
            ProcessGroups.run(
                    groups,
                    group -> {
                        try (NDManager manager = NDManager.newBaseManager(group.device())) {
                            NDArray tensor = manager.ones(new Shape(2));
                            group.allReduce(tensor, ReduceOp.SUM).await(); // Connects.
                            if (group.rank() == 1) {
                                log.await(call);
                            }
                            group.allReduce(tensor, ReduceOp.SUM).await();
                            assertEquals(4, tensor.toFloatArray()[0]);
                            return null;
                        }
                    });
            return log.await(call);
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }
}
