// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.internal.cudap2p.P2pRanks;
import org.djlx.fusedops.cost.Path;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaGraph;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.torch.CudaStreamGuard;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Path FUSED of two groups on the same GPUs, whose ranks call it in different orders. */
@Tag("gpu")
@Timeout(120)
class TwoGroupsGpuTest {

    private static final int CALLS = 200;
    private static final int ROWS = 512; // of a shard
    private static final int INNER = 256;
    private static final int COLUMNS = 4096;

    @BeforeEach
    void requireHopper() {
        P2pRanks.require(2);
        assumeTrue(FusedOpsGpuTest.isHopper(), "the GPU is not a Hopper");
    }

    @Test
    @SuppressWarnings("try") // the scope is not named in the body
    void fusedOperators() {
        try (FusedOps.Scope scope = FusedOps.force(Path.FUSED)) {
            List<ProcessGroup> x = groups();
            try {
                List<ProcessGroup> y = groups();
                try {
                    CompletableFuture<Void> first = CompletableFuture.runAsync(() -> run(x, 1));
                    run(y, 2);
                    first.join();
                } finally {
                    y.forEach(ProcessGroup::destroy);
                }
            } finally {
                x.forEach(ProcessGroup::destroy);
            }
        }
    }

    private static List<ProcessGroup> groups() {
        return ProcessGroups.local(
                "cuda_p2p", 2, P2pRanks.options().optBufferSize(32 << 20).build());
    }

    private static void run(List<ProcessGroup> groups, long seed) {
        ProcessGroups.run(
                groups,
                group -> {
                    calls(group, seed);
                    return null;
                });
    }

    private static void calls(ProcessGroup group, long seed) {
        Random calls = new Random(seed); // the same on all ranks
        Random pauses = new Random(seed * 10 + group.rank());
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch");
                CudaDevice device = CudaDevice.open(group.device());
                CudaStream stream = CudaStream.create(device)) {
            CudaStreamGuard guard = Torch.cudaStreamGuard(group.device(), stream.handle());
            try {
                NDArray a = ones(manager, ROWS, INNER);
                NDArray b = ones(manager, INNER, COLUMNS);
                NDArray back = ones(manager, COLUMNS, INNER);
                for (int i = 0; i < 2; i++) {
                    gathered(a, b, group).close();
                    scattered(a, b, back, group).close();
                }
                stream.synchronize();
                NDArray[] replayed = {null};
                try (CudaGraph graph =
                        CudaGraph.capture(stream, () -> replayed[0] = gathered(a, b, group))) {
                    for (int i = 0; i < CALLS; i++) {
                        if (pauses.nextInt(4) == 0) {
                            LockSupport.parkNanos(
                                    TimeUnit.MICROSECONDS.toNanos(pauses.nextInt(2000)));
                        }
                        int kind = calls.nextInt(3);
                        if (kind == 0) {
                            graph.launch(stream);
                        }
                        NDArray result =
                                switch (kind) {
                                    case 0 -> replayed[0];
                                    case 1 -> gathered(a, b, group);
                                    default -> scattered(a, b, back, group);
                                };
                        if (i % 20 == 0) {
                            check(result, stream, kind < 2 ? INNER : INNER * COLUMNS);
                        }
                        if (kind > 0) {
                            result.close();
                        }
                    }
                }
                stream.synchronize();
            } finally {
                guard.close();
            }
        }
    }

    private static void check(NDArray result, CudaStream stream, float expected) {
        NDArray floats = Torch.cast(result, ScalarType.FLOAT32);
        stream.synchronize();
        float[] values = floats.toFloatArray();
        assertTrue(values.length >= ROWS * INNER);
        for (float value : values) {
            assertEquals(expected, value);
        }
        floats.close();
    }

    private static NDArray ones(NDManager manager, long rows, long columns) {
        return Torch.cast(manager.ones(new Shape(rows, columns)), ScalarType.BFLOAT16);
    }

    private static NDArray gathered(NDArray a, NDArray b, ProcessGroup group) {
        return FusedOps.allGatherMatmul(a, List.of(b), 0, group, false).outputs().get(0);
    }

    /** A row is the sum of all elements of a row of A, as often as B has columns. */
    private static NDArray scattered(NDArray a, NDArray b, NDArray back, ProcessGroup group) {
        try (NDArray wide = gathered(a, b, group)) {
            return FusedOps.matmulReduceScatter(wide, back, ReduceOp.AVG, 0, group);
        }
    }
}
