// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BrokenBarrierException;
import java.util.concurrent.CyclicBarrier;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.TestArrays;
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
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** The first operator of a group is captured: kernels, workspaces and events are made meanwhile. */
@Tag("gpu")
@Timeout(120)
class FirstCallInCaptureGpuTest {

    private static final int ROWS = 160; // of a rank
    private static final int INNER = 64;
    private static final int COLUMNS = 320;
    private static final int LAUNCHES = 3;

    private int worldSize;

    @BeforeEach
    void requireGpus() {
        worldSize = P2pRanks.require();
    }

    private interface Call {
        NDArray issue(ProcessGroup group, NDArray a, NDArray b);
    }

    @ParameterizedTest
    @EnumSource(names = {"FUSED", "PIPELINED", "GATHERED"})
    void allGatherMatmul(Path path) {
        check(
                path,
                new Shape(ROWS, INNER),
                (group, a, b) ->
                        FusedOps.allGatherMatmul(a, List.of(b), 0, group, false).outputs().get(0),
                rank -> INNER * (rank + 1f));
    }

    @ParameterizedTest
    @EnumSource(names = {"FUSED", "PIPELINED", "GATHERED"})
    void matmulReduceScatter(Path path) {
        float all = worldSize * (worldSize + 1) / 2f;
        check(
                path,
                new Shape((long) ROWS * worldSize, INNER),
                (group, a, b) -> FusedOps.matmulReduceScatter(a, b, ReduceOp.SUM, 0, group),
                rank -> INNER * all);
    }

    private interface Expected {
        float of(int rank);
    }

    @SuppressWarnings("try") // the scope is not named in the body
    private void check(Path path, Shape shape, Call call, Expected expected) {
        assumeTrue(path != Path.FUSED || FusedOpsGpuTest.isHopper(), "the GPU is not a Hopper");
        try (FusedOps.Scope scope = FusedOps.force(path);
                UsageCounter usage = FusedOps.countUsage()) {
            check(shape, new Shape(INNER, COLUMNS), call, expected);
            long calls = 2L * worldSize; // one is captured, one is not
            assertEquals(Map.of(path, calls), Map.of(path, usage.calls(path)));
        }
    }

    @Test
    void allReduceRmsNorm() {
        check(
                new Shape(ROWS, INNER),
                new Shape(INNER),
                (group, a, b) -> FusedOps.allReduceRmsNorm(a, a, b, 0, group).norm(),
                rank -> 1); // all elements of a row are the same
    }

    /** A has this rank's number plus one everywhere, B has ones. */
    private void check(Shape ofA, Shape ofB, Call call, Expected expected) {
        CyclicBarrier step = new CyclicBarrier(worldSize);
        LocalRanks.run(
                ProcessGroups.local("cuda_p2p", worldSize, FusedOpsGpuTest.options(16 << 20)),
                group -> {
                    try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch");
                            CudaDevice device = CudaDevice.open(group.device());
                            CudaStream stream = CudaStream.create(device)) {
                        NDArray a = filled(manager, ofA, group.rank() + 1f);
                        NDArray b = filled(manager, ofB, 1);
                        device.synchronize();
                        await(step); // Else a rank on the same GPU may be capturing already.
                        CudaStreamGuard guard =
                                Torch.cudaStreamGuard(group.device(), stream.handle());
                        NDArray[] result = new NDArray[1];
                        try (CudaGraph graph =
                                CudaGraph.capture(
                                        stream, () -> result[0] = call.issue(group, a, b))) {
                            await(step);
                            for (int launch = 0; launch < LAUNCHES; launch++) {
                                graph.launch(stream);
                                requireParts(result[0], expected);
                            }
                            try (NDArray eager = call.issue(group, a, b)) {
                                requireParts(eager, expected);
                            }
                        } finally {
                            guard.close();
                            stream.synchronize();
                        }
                    }
                });
    }

    private static void await(CyclicBarrier step) {
        try {
            step.await();
        } catch (InterruptedException | BrokenBarrierException e) {
            throw new AssertionError(e);
        }
    }

    private static NDArray filled(NDManager manager, Shape shape, float value) {
        NDArray array = Torch.cast(manager.full(shape, value), ScalarType.BFLOAT16);
        array.attach(manager);
        return array;
    }

    /** All parts of a result, one for each rank, or one for all. */
    private static void requireParts(NDArray result, Expected expected) {
        try (NDArray floats = Torch.cast(result, ScalarType.FLOAT32)) {
            float[] values = TestArrays.awaited(floats).toFloatArray();
            int part = ROWS * (int) result.getShape().getLastDimension();
            for (int i = 0; i < values.length; i++) {
                assertEquals(expected.of(i / part), values[i], "element " + i);
            }
        }
    }
}
