// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.BrokenBarrierException;
import java.util.concurrent.CyclicBarrier;
import java.util.function.Consumer;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.TestArrays;
import org.djlx.collectives.internal.cudap2p.P2pRanks;
import org.djlx.fusedops.FusedOps;
import org.djlx.fusedops.NormedResidual;
import org.djlx.llm.model.Quantization;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.cuda.KernelCache;
import org.djlx.nativeops.cuda.KernelCompiler;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Matmuls of a decode step behind an exchange, with ranks as threads. */
@Tag("gpu")
@Timeout(300)
class DependentMatmulGpuTest {

    /**
     * A matmul that depends on an exchange takes no SMs while the exchange waits. Otherwise, where
     * ranks share a GPU, the matmul that rank 1 runs before its own exchange would never start.
     */
    @Test
    void dependentMatmulsLeaveSmsToPeers() {
        int depth = 4096;
        int width = 16_384;
        int worldSize = P2pRanks.require();
        CyclicBarrier ranks = new CyclicBarrier(worldSize);
        CudaP2pOptions options = P2pRanks.options().optBufferSize(8 << 20).build();
        run(
                ProcessGroups.local("cuda_p2p", worldSize, options),
                group -> {
                    ProcessGroup hasty = group.withTimeout(Duration.ofSeconds(5));
                    try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch");
                            CudaDevice device = CudaDevice.open(group.device());
                            CurrentStreams streams = new CurrentStreams(device);
                            DecoderKernels kernels =
                                    new DecoderKernels(
                                            device,
                                            new KernelCompiler(KernelCache.user()),
                                            new DecoderKernels.Model(
                                                    ScalarType.BFLOAT16,
                                                    new WeightFormat(Quantization.NONE),
                                                    8,
                                                    128,
                                                    1,
                                                    16,
                                                    16))) {
                        ScalarType type = ScalarType.BFLOAT16;
                        NDArray x = TestArrays.random(manager, type, new Shape(1, depth), 60);
                        NDArray norm = TestArrays.random(manager, type, new Shape(depth), 61);
                        NDArray weight = Torch.empty(manager, new Shape(width, depth), type);
                        NDArray output = Torch.empty(manager, new Shape(1, width), type);
                        MatmulChain.Link link =
                                new MatmulChain.Link(
                                        false,
                                        Torch.dataPointer(output),
                                        width,
                                        Torch.dataPointer(x),
                                        new QuantizeKernels.Matrix(
                                                16, Torch.dataPointer(weight), 0, width, depth),
                                        0,
                                        null);
                        DecoderKernels.Addend none = DecoderKernels.Addend.NONE;
                        Runnable matmul = () -> kernels.matmul(streams.get(), 1, link, none);
                        matmul.run(); // loads the kernel, which blocks while another rank waits
                        device.synchronize();
                        ranks.await();
                        double[] expected =
                                TestArrays.values(
                                        FusedOps.allReduceRmsNorm(x, x, norm, 1e-5f, hasty).norm());
                        for (int i = 0; i < 20; i++) {
                            device.synchronize();
                            ranks.await();
                            if (group.rank() > 0) {
                                Thread.sleep(2); // rank 0 has enqueued its exchange and matmul
                                matmul.run();
                            }
                            NormedResidual result =
                                    FusedOps.allReduceRmsNorm(x, x, norm, 1e-5f, hasty);
                            matmul.run();
                            assertArrayEquals(expected, TestArrays.values(result.norm()));
                        }
                    } catch (InterruptedException | BrokenBarrierException e) {
                        throw new IllegalStateException(e);
                    }
                });
    }

    private static void run(List<ProcessGroup> groups, Consumer<ProcessGroup> body) {
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        P2pRanks.run(group, () -> body.accept(group));
                        return null;
                    });
        } catch (Exception e) {
            throw new AssertionError(e);
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }
}
