// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.shm;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import org.djlx.collectives.CollectiveMismatchException;
import org.djlx.collectives.CollectiveTimeoutException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.collectives.spi.Backend;
import org.djlx.collectives.spi.BackendFactory;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.spi.Backends;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.spi.Support;
import org.djlx.collectives.spi.cpu.HeldMemory;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** The costs of operations: bytes copied, and no memory kept. */
@Timeout(60)
class ShmCostTest {

    private static final int RANKS = 3;
    private static final int COUNT = 30_000;
    private static final long BYTES = 4L * COUNT;

    private final ConcurrentMap<Integer, ShmBackend> backends = new ConcurrentHashMap<>();
    private List<ProcessGroup> groups;

    /** The shm backend, within reach of this test. */
    private final class Observed implements BackendFactory {

        @Override
        public String name() {
            return "observed";
        }

        @Override
        public Support support() {
            return ShmBackend.SUPPORT;
        }

        @Override
        public Backend create(GroupContext context) {
            ShmBackend backend = ShmBackend.create(context);
            backends.put(context.rank(), backend);
            return backend;
        }
    }

    @BeforeEach
    void create() {
        Backends.register("observed", new Observed());
        groups = ProcessGroups.local("observed", RANKS, new BackendOptions(Duration.ofSeconds(30)));
    }

    @AfterEach
    void destroy() {
        groups.forEach(ProcessGroup::destroy);
    }

    private interface Call {
        Work call(ProcessGroup group, NDManager manager);
    }

    /** Runs an operation on all ranks and checks how many bytes each has copied. */
    private void assertCopied(long first, long others, Call call) {
        ProcessGroups.run(
                groups,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                        ShmBackend backend = backends.get(group.rank());
                        long before = backend.copiedBytes();
                        call.call(group, manager).await();
                        assertEquals(
                                group.rank() == 0 ? first : others,
                                backend.copiedBytes() - before,
                                "rank " + group.rank());
                    }
                    return null;
                });
    }

    private static NDArray part(NDArray whole, int rank) {
        return whole.get(rank * COUNT + ":" + (rank + 1) * COUNT);
    }

    @Test
    void allGatherInPlaceCopiesNoPartOntoItself() {
        // Once to where the others see it, once from each of the others.
        long inPlace = BYTES + (RANKS - 1) * BYTES;
        assertCopied(
                inPlace,
                inPlace,
                (group, manager) -> {
                    NDArray output = manager.zeros(new Shape(RANKS * COUNT));
                    return group.allGatherIntoTensor(output, part(output, group.rank()));
                });
        assertCopied(
                inPlace + BYTES,
                inPlace + BYTES,
                (group, manager) ->
                        group.allGatherIntoTensor(
                                manager.zeros(new Shape(RANKS * COUNT)),
                                manager.zeros(new Shape(COUNT))));
    }

    /** 20 tensors wait for the other ranks as often as one of them. */
    @Test
    void smallCoalescedTensorsShareTheirSteps() {
        ProcessGroups.run(
                groups,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                        ShmBackend backend = backends.get(group.rank());
                        List<NDArray> small = new ArrayList<>();
                        List<NDArray> wholes = new ArrayList<>();
                        for (int i = 0; i < 20; i++) {
                            small.add(manager.ones(new Shape(1_500)));
                            wholes.add(manager.ones(new Shape(RANKS * 1_500)));
                        }
                        int before = backend.steps();
                        group.allReduceCoalesced(small, ReduceOp.SUM).await();
                        assertEquals(2, backend.steps() - before);
                        group.allGatherCoalesced(wholes, small).await();
                        assertEquals(3, backend.steps() - before);
                        group.reduceScatterCoalesced(small, wholes, ReduceOp.SUM).await();
                        assertEquals(4, backend.steps() - before);
                    }
                    return null;
                });
    }

    @Test
    void reduceScatterShowsOthersOnlyTheirParts() {
        long others = (RANKS - 1) * BYTES;
        for (boolean inPlace : new boolean[] {true, false}) {
            assertCopied(
                    others,
                    others,
                    (group, manager) -> {
                        NDArray input = manager.zeros(new Shape(RANKS * COUNT));
                        NDArray output =
                                inPlace
                                        ? part(input, group.rank())
                                        : manager.zeros(new Shape(COUNT));
                        return group.reduceScatterTensor(output, input, ReduceOp.SUM);
                    });
        }
    }

    @Test
    void onlyTheRootOfAGatherCopiesOut() {
        assertCopied(
                (RANKS - 1) * BYTES,
                BYTES,
                (group, manager) -> {
                    NDArray input = manager.zeros(new Shape(COUNT));
                    List<NDArray> outputs =
                            List.of(
                                    input,
                                    manager.zeros(new Shape(COUNT)),
                                    manager.zeros(new Shape(COUNT)));
                    return group.gather(group.rank() == 0 ? outputs : null, input, 0);
                });
    }

    @Test
    void onlyTheRootOfAScatterCopiesIn() {
        assertCopied(
                (RANKS - 1) * BYTES,
                BYTES,
                (group, manager) -> {
                    NDArray output = manager.zeros(new Shape(COUNT));
                    List<NDArray> inputs =
                            List.of(
                                    output,
                                    manager.zeros(new Shape(COUNT)),
                                    manager.zeros(new Shape(COUNT)));
                    return group.scatter(output, group.rank() == 0 ? inputs : null, 0);
                });
    }

    @Test
    void allToAllCopiesOwnPartsOnce() {
        long each = 2 * (RANKS - 1) * BYTES + BYTES;
        assertCopied(
                each,
                each,
                (group, manager) ->
                        group.allToAllSingle(
                                manager.zeros(new Shape(RANKS * COUNT)),
                                manager.zeros(new Shape(RANKS * COUNT))));
    }

    /** Operations hold arrays while they are running, and none afterwards. */
    @Test
    void operationsKeepNoMemory() {
        ProcessGroups.run(
                groups,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                        useAll(group, manager);
                    }
                    return null;
                });
        HeldMemory.assertNone(backends.values());
    }

    /** A copy of a tensor that is not contiguous cannot have more than 64 dimensions. */
    @Test
    void failedCopyKeepsNoMemory() {
        long[] sizes = new long[65];
        Arrays.fill(sizes, 1);
        sizes[0] = 2;
        sizes[1] = 3;
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            NDArray strided = manager.ones(new Shape(6)).reshape(new Shape(sizes)).swapAxes(0, 1);
            ProcessGroup group = groups.get(0);
            assertThrows(
                    IllegalArgumentException.class, () -> group.allReduce(strided, ReduceOp.SUM));
            assertThrows(IllegalArgumentException.class, () -> group.recv(strided, 1, 0));
            // The last of several.
            NDArray plain = strided.duplicate();
            List<NDArray> outputs = List.of(plain, plain.duplicate(), strided);
            assertThrows(
                    IllegalArgumentException.class,
                    () -> group.allGather(outputs, plain.duplicate()));
        }
        HeldMemory.assertNone(List.of(backends.get(0)));
    }

    private static void useAll(ProcessGroup group, NDManager manager) {
        NDArray strided = manager.ones(new Shape(6, 4)).transpose();
        NDArray other = manager.ones(new Shape(4, 6));
        group.allReduce(strided, ReduceOp.premulSum(2)).await();
        group.reduce(Torch.cast(strided, ScalarType.BFLOAT16), 1, ReduceOp.AVG).await();
        group.reduceScatterTensor(manager.ones(new Shape(8)), strided, ReduceOp.MAX).await();
        group.allGather(List.of(strided, other, manager.ones(new Shape(4, 6))), other.duplicate())
                .await();
        ProcessGroup hasty = group.withTimeout(Duration.ofMillis(20));
        Work unsent = hasty.send(strided, (group.rank() + 1) % RANKS, 1);
        assertThrows(CollectiveTimeoutException.class, unsent::await);
        Work received = group.recv(strided, (group.rank() + 2) % RANKS, 2);
        group.send(other, (group.rank() + 1) % RANKS, 2).await();
        received.await();
        Work misfit = group.recv(strided, (group.rank() + 2) % RANKS, 3);
        Work wrong = group.send(manager.ones(new Shape(3)), (group.rank() + 1) % RANKS, 3);
        assertThrows(CollectiveMismatchException.class, wrong::await);
        assertThrows(CollectiveMismatchException.class, misfit::await);
        assertThrows(
                CollectiveMismatchException.class,
                () ->
                        group.broadcast(
                                        group.rank() == 0
                                                ? strided
                                                : group.rank() == 1
                                                        ? other
                                                        : manager.ones(new Shape(1)),
                                        0)
                                .await());
        group.allReduceCoalesced(List.of(strided, other), ReduceOp.SUM).await();
    }
}
