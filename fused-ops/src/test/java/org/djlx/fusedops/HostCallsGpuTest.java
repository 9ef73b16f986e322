// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.pytorch.jni.JniUtils;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BrokenBarrierException;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.internal.cudap2p.P2pRanks;
import org.djlx.fusedops.cost.Path;
import org.djlx.fusedops.internal.path.GroupPlans;
import org.djlx.fusedops.kernel.Compute;
import org.djlx.fusedops.kernel.Product;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.cuda.MatrixLayout;
import org.djlx.nativeops.host.NativeCalls;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** The native calls of an operation: each costs the host 0.1 to 5 us. */
@Tag("gpu")
@Timeout(120)
class HostCallsGpuTest {

    // For so long that the watchdog gives events back, which the first calls create.
    private static final int CALLS = 1000;
    private static final int MEETING_SECONDS = 40; // longer than the group's timeout

    private final CyclicBarrier meeting = new CyclicBarrier(2);

    /** Context, capture, launch and event; the rest are libtorch's and cuBLASLt's. */
    @Test
    void areFew() {
        P2pRanks.require(2);
        assumeTrue(FusedOpsGpuTest.isHopper(), "the GPU is not a Hopper");
        CudaP2pOptions options = P2pRanks.options().optBufferSize(8 << 20).build();
        LocalRanks.run(
                ProcessGroups.local("cuda_p2p", 2, options),
                group -> P2pRanks.run(group, () -> check(group)));
    }

    private void check(ProcessGroup group) {
        JniUtils.setGradMode(true);
        Map<String, NativeCalls> counts = new LinkedHashMap<>();
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
            NDArray a = array(manager, 16, 32);
            List<NDArray> bs = List.of(array(manager, 32, 16));
            NDArray rows = array(manager, 8, 64);
            NDArray weight = array(manager, 64);
            NDArray whole = array(manager, 16, 64);
            loadProducts(group, array(manager, 32, 16), array(manager, 32, 32), bs.get(0));
            counts.put(
                    "all-reduce", count(group, () -> group.allReduce(rows, ReduceOp.SUM, false)));
            counts.put(
                    "all-gather",
                    count(group, () -> group.allGatherIntoTensor(whole, rows, false)));
            counts.put(
                    "reduce-scatter",
                    count(
                            group,
                            () -> group.reduceScatterTensor(rows, whole, ReduceOp.SUM, false)));
            counts.put("norm", count(group, () -> norm(rows, weight, group)));
            for (Path path : List.of(Path.FUSED, Path.GATHERED, Path.PIPELINED)) {
                counts.put(path.toString(), countGathers(path, a, bs, group));
            }
        }
        assertEquals(
                Map.of(
                        "all-reduce",
                        new NativeCalls(4, 4),
                        "all-gather",
                        new NativeCalls(4, 6),
                        "reduce-scatter",
                        new NativeCalls(4, 6),
                        "norm",
                        new NativeCalls(4, 7),
                        Path.FUSED.toString(),
                        new NativeCalls(4, 5),
                        Path.GATHERED.toString(),
                        new NativeCalls(4, 7),
                        Path.PIPELINED.toString(),
                        new NativeCalls(4, 6)),
                counts);
    }

    /**
     * Multiplies as the gathers do. cuBLASLt loads a kernel at its first product, and the load may
     * wait for running kernels: none of them may wait for the other rank then.
     */
    private static void loadProducts(ProcessGroup group, NDArray out, NDArray a, NDArray b) {
        Compute compute = GroupPlans.of(group).compute();
        compute.begin();
        for (long rows : new long[] {16, 32}) {
            MatrixLayout left = MatrixLayout.contiguous(rows, 32);
            MatrixLayout right = MatrixLayout.contiguous(32, 16);
            MatrixLayout product = MatrixLayout.contiguous(rows, 16);
            try (Product kernel = compute.product(ScalarType.BFLOAT16, product, left, right)) {
                kernel.run(
                        Torch.dataPointer(out), Torch.dataPointer(a), Torch.dataPointer(b), null);
            }
        }
    }

    private static void norm(NDArray rows, NDArray weight, ProcessGroup group) {
        NormedResidual result = FusedOps.allReduceRmsNorm(rows, rows, weight, 1e-5f, group);
        result.residual().close();
        result.norm().close();
    }

    @SuppressWarnings("try") // the scope is not named in the body
    private NativeCalls countGathers(Path path, NDArray a, List<NDArray> bs, ProcessGroup group) {
        // Both ranks force the path: no call of the other rank runs between their scopes.
        try (FusedOps.Scope scope = FusedOps.force(path)) {
            return count(
                    group,
                    () ->
                            FusedOps.allGatherMatmul(a, bs, 0, group, false)
                                    .outputs()
                                    .forEach(NDArray::close));
        }
    }

    private static NDArray array(NDManager manager, long... sizes) {
        try (NDArray ones = manager.ones(new Shape(sizes))) {
            NDArray result = Torch.cast(ones, ScalarType.BFLOAT16);
            result.attach(manager);
            return result;
        }
    }

    /**
     * Returns the fewest native calls of a call. Before each call the ranks meet, and no kernel of
     * either runs: the first calls load kernels.
     */
    private NativeCalls count(ProcessGroup group, Runnable call) {
        long driver = Long.MAX_VALUE;
        long other = Long.MAX_VALUE;
        try (CudaDevice device = CudaDevice.open(group.device());
                CurrentStreams streams = new CurrentStreams(device)) {
            for (int i = 0; i < CALLS; i++) {
                streams.get().synchronize();
                meet(group);
                NativeCalls before = NativeCalls.ofThread();
                call.run();
                NativeCalls after = NativeCalls.ofThread();
                driver = Math.min(driver, after.driver() - before.driver());
                other = Math.min(other, after.other() - before.other());
            }
            streams.get().synchronize();
        }
        meet(group);
        return new NativeCalls(driver, other);
    }

    private void meet(ProcessGroup group) {
        try {
            meeting.await(MEETING_SECONDS, TimeUnit.SECONDS);
        } catch (TimeoutException | BrokenBarrierException | InterruptedException e) {
            throw new IllegalStateException(
                    "rank %d did not meet the other rank within %d s"
                            .formatted(group.rank(), MEETING_SECONDS),
                    e);
        }
    }
}
