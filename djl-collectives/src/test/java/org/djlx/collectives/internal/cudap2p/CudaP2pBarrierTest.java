// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import static org.junit.jupiter.api.Assertions.assertEquals;

import ai.djl.ndarray.NDManager;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CountDownLatch;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.Work;
import org.djlx.collectives.p2p.BarrierCases;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaEvent;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.torch.CudaStreamGuard;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Barriers of some ranks on {@code cuda_p2p}. */
@Timeout(120)
class CudaP2pBarrierTest {

    private interface Body {
        void run(ProcessGroup group, NDManager manager) throws InterruptedException;
    }

    private static void run(int ranks, Body body) {
        P2pRanks.require(ranks);
        List<ProcessGroup> groups =
                ProcessGroups.local(
                        "cuda_p2p", ranks, P2pRanks.options().optBufferSize(1 << 16).build());
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        P2pRanks.run(
                                group,
                                () -> {
                                    try (NDManager manager =
                                            NDManager.newBaseManager(group.device(), "PyTorch")) {
                                        body.run(group, manager);
                                    } catch (InterruptedException e) {
                                        throw new IllegalStateException(e);
                                    }
                                });
                        return null;
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    @ParameterizedTest
    @ValueSource(ints = {3, 4})
    @Tag("gpu")
    void exchanges(int ranks) {
        run(ranks, BarrierCases::exchanges);
    }

    /**
     * Rank 0 makes its copies after all other hosts have enqueued their barriers. A copy that waits
     * for the current stream of a peer's GPU, as libtorch's does, waits for a barrier that waits
     * for rank 0. With four ranks on two GPUs, two of them use the default streams.
     */
    @ParameterizedTest
    @ValueSource(ints = {2, 3, 4})
    @Tag("gpu")
    void copiesToPeersWaitForNoStreamOfAPeer(int ranks) {
        P2pRanks.require();
        P2pRanks.requireOwnGpus("libtorch copies on the current stream of the rank's own GPU");
        int gpus = CudaDevice.count();
        List<ProcessGroup> groups =
                ProcessGroups.local(
                        "cuda_p2p",
                        ranks,
                        P2pRanks.options()
                                .optBufferSize(1 << 16)
                                .optSharedGpus(ranks > gpus)
                                .build());
        CountDownLatch ahead = new CountDownLatch(ranks - 1);
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        Runnable body = () -> BarrierCases.copies(group, ahead);
                        if (group.rank() < gpus) {
                            body.run();
                        } else {
                            P2pRanks.runOnStream(group, body);
                        }
                        return null;
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    @Test
    @Tag("gpu")
    void othersNeedNotCall() {
        CountDownLatch ended = new CountDownLatch(2);
        run(3, (group, manager) -> BarrierCases.othersNeedNotCall(group, ended));
    }

    @ParameterizedTest
    @ValueSource(ints = {3, 4})
    @Tag("gpu")
    void differentRanksBreakTheGroup(int ranks) {
        run(ranks, (group, manager) -> BarrierCases.differentRanks(group));
    }

    /** On one stream, rank 0's wait would come before the signal that ends it. */
    @Test
    @Tag("gpu")
    void signalsGoOnTheCallersStream() {
        run(2, (group, manager) -> meetOnTwoStreams(group));
    }

    private static void meetOnTwoStreams(ProcessGroup group) {
        P2pBuffers buffers = group.p2pBuffers().orElseThrow();
        int peer = 1 - group.rank();
        try (CudaDevice device = CudaDevice.open(group.device());
                CudaStream other = CudaStream.create(device);
                CudaEvent entered = CudaEvent.create(device);
                CudaEvent arrived = CudaEvent.create(device)) {
            CudaStream current = CudaStream.wrap(device, Torch.currentCudaStream(device.device()));
            Work work =
                    group.execute(
                            new OpType("streams"),
                            new Operation.Agreed(null, new long[0], null, 0),
                            operation -> {
                                long epoch = buffers.epoch(operation);
                                entered.record(current);
                                other.waitEvent(entered);
                                boolean first = group.rank() == 0;
                                CudaStreamGuard guard =
                                        Torch.cudaStreamGuard(
                                                device.device(),
                                                first ? other.handle() : current.handle());
                                try {
                                    buffers.waitSignal(operation, peer, 0, epoch);
                                } finally {
                                    guard.close();
                                }
                                buffers.putSignal(peer, 0, epoch);
                                arrived.record(other);
                                current.waitEvent(arrived);
                            });
            work.await();
            current.synchronize();
            assertEquals(Optional.empty(), work.exception());
        }
    }

    /** The word in which a kernel reports why its wait failed. */
    @Test
    void statusWordSaysWhyAWaitFailed() {
        assertEquals(Optional.empty(), WaitStatus.error(0));
        assertEquals(Optional.of("rank 2 did not arrive"), WaitStatus.error(3));
        assertEquals(
                Optional.of(
                        "rank 1 called the barrier of ranks [0, 1, 7], this rank one of other"
                                + " ranks; name the same ranks on each of them"),
                WaitStatus.error(2 | 0b10000011 << 8));
    }
}
