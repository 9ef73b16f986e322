// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import static org.junit.jupiter.api.Assertions.assertEquals;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BrokenBarrierException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation;
import org.djlx.nativeops.cuda.CudaAttribute;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaKernel;
import org.djlx.nativeops.cuda.CudaModule;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.cuda.KernelArguments;
import org.djlx.nativeops.cuda.KernelCache;
import org.djlx.nativeops.cuda.KernelCompiler;
import org.djlx.nativeops.cuda.KernelSource;
import org.djlx.nativeops.cuda.LaunchSize;
import org.djlx.nativeops.torch.ScalarType;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Kernels of two groups that fill the GPUs while they wait for their peers. */
@Tag("gpu")
@Timeout(120)
class GpuTurnsGpuTest {

    private static final int ROUNDS = 5;
    private static final int SHARED_BYTES = 200 << 10; // a block has an SM of its own
    private static final int LATE = 64; // offset of the word that a late kernel writes
    private static final OpType FILL = new OpType("fill");
    private static final Operation.Agreed ARGUMENTS =
            new Operation.Agreed(null, new long[0], null, 0);
    private static final KernelSource SOURCE =
            new KernelSource(
                    "fill.cu",
                    """
                    // Signals the peer, and keeps the SMs until the peer has signalled.
                    extern "C" __global__ void fill(volatile unsigned* own, volatile unsigned* peer,
                                                    unsigned value, unsigned long long limit, unsigned* late) {
                      unsigned long long begin, now;
                      asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
                      if (blockIdx.x == 0) *peer = value;
                      while ((int)(*own - value) < 0) {
                        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
                        if (now - begin > limit) {
                          *late = 1;
                          break;
                        }
                      }
                    }
                    """,
                    Map.of());

    private final CyclicBarrier round = new CyclicBarrier(4);

    @BeforeEach
    void requireGpus() {
        P2pRanks.require(2);
    }

    private void meet() {
        try {
            round.await(1, TimeUnit.MINUTES);
        } catch (InterruptedException | BrokenBarrierException | TimeoutException e) {
            throw new AssertionError(e);
        }
    }

    /** The groups' ranks launch in opposite orders: without turns, kernels time out. */
    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void kernelsThatFillTheGpus(boolean turns) {
        List<ProcessGroup> x = ProcessGroups.local("cuda_p2p", 2, P2pRanks.options().build());
        try {
            List<ProcessGroup> y = ProcessGroups.local("cuda_p2p", 2, P2pRanks.options().build());
            try {
                CompletableFuture<Integer> first =
                        CompletableFuture.supplyAsync(() -> late(x, true, turns));
                int late = late(y, false, turns) + first.join();
                assertEquals(turns, late == 0, late + " rounds in which a kernel has timed out");
            } finally {
                y.forEach(ProcessGroup::destroy);
            }
        } finally {
            x.forEach(ProcessGroup::destroy);
        }
    }

    /** Returns in how many rounds kernels of the group have timed out. */
    private int late(List<ProcessGroup> groups, boolean first, boolean turns) {
        return ProcessGroups.run(
                        groups,
                        group -> {
                            int[] late = {0};
                            P2pRanks.runOnStream(group, () -> late[0] = late(group, first, turns));
                            return late[0];
                        })
                .stream()
                .mapToInt(Integer::intValue)
                .sum();
    }

    private int late(ProcessGroup group, boolean first, boolean turns) {
        P2pBuffers buffers = group.p2pBuffers().orElseThrow();
        int rank = group.rank();
        // Launches: X on rank 0, Y on rank 1, X on rank 1, Y on rank 0.
        int delay = first ? 50 * rank : 75 - 50 * rank;
        int late = 0;
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch");
                CudaDevice device = CudaDevice.open(group.device());
                CudaModule module = new KernelCompiler(KernelCache.user()).load(device, SOURCE)) {
            CurrentStreams streams = new CurrentStreams(device);
            CudaKernel kernel = module.kernel("fill");
            kernel.allowSharedMemory(SHARED_BYTES);
            int processors = device.attribute(CudaAttribute.MULTIPROCESSOR_COUNT);
            int blocks = P2pRanks.isShared() ? processors / 2 : processors;
            LaunchSize size = LaunchSize.of(blocks, 1).withShared(SHARED_BYTES);
            NDArray words = buffers.p2pBuffer(manager, rank, new Shape(32), ScalarType.INT32, 0);
            words.subi(words.duplicate());
            streams.get().synchronize();
            for (int i = 1; i <= ROUNDS; i++) {
                meet();
                sleep(delay);
                KernelArguments arguments =
                        new KernelArguments()
                                .add(buffers.address(rank, 0))
                                .add(buffers.address(1 - rank, 0))
                                .add(i)
                                .add(turns ? 10_000_000_000L : 400_000_000L)
                                .add(buffers.address(rank, LATE));
                group.execute(
                                FILL,
                                ARGUMENTS,
                                operation -> {
                                    if (turns) {
                                        buffers.takeTurn(operation);
                                    }
                                    kernel.launch(streams.get(), size, arguments);
                                })
                        .blockCurrentStream();
                CudaStream stream = streams.get();
                stream.synchronize();
                late += words.toIntArray()[LATE / Integer.BYTES];
                words.get("" + LATE / Integer.BYTES + ":").muli(0);
                stream.synchronize();
            }
            streams.close();
        }
        return late;
    }

    private static void sleep(int millis) {
        try {
            TimeUnit.MILLISECONDS.sleep(millis);
        } catch (InterruptedException e) {
            throw new AssertionError(e);
        }
    }
}
