// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.nccl;

import static org.junit.jupiter.api.Assertions.assertEquals;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.function.Supplier;
import java.util.stream.IntStream;
import org.djlx.collectives.NcclOptions;
import org.djlx.collectives.P2pOp;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.nativeops.cuda.CudaDevice;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/**
 * Prints what messages cost on the group's communicator and on communicators of the pairs, on all
 * GPUs: creation, bandwidth, and a collective beside them. Checks only the values.
 */
@Tag("gpu")
@Timeout(200)
class NcclMessageCostTest {

    private static final int WARM_UP = 10;
    private static final int ROUNDS = 30;

    @BeforeEach
    void requireGpus() {
        NcclCases.require(2);
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void costs(boolean pairs) {
        Device[] devices =
                IntStream.range(0, CudaDevice.count()).mapToObj(Device::gpu).toArray(Device[]::new);
        NcclOptions options =
                NcclOptions.builder()
                        .optTimeout(Duration.ofSeconds(60))
                        .optDevices(devices)
                        .optPairCommunicators(pairs)
                        .build();
        String name = pairs ? "pairs' communicators" : "group's communicator";
        long start = System.nanoTime();
        List<ProcessGroup> groups = ProcessGroups.local("nccl", devices.length, options);
        double created = (System.nanoTime() - start) / 1e6;
        try {
            List<List<String>> lines =
                    ProcessGroups.run(groups, group -> new Measurement(group).run());
            System.out.printf("%s: group created in %.0f ms%n", name, created);
            lines.get(0).forEach(line -> System.out.printf("%s: %s%n", name, line));
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    /** One rank. */
    private static final class Measurement {

        private final ProcessGroup group;
        private final List<String> lines = new ArrayList<>();

        Measurement(ProcessGroup group) {
            this.group = group;
        }

        List<String> run() {
            try (NDManager manager = NDManager.newBaseManager(group.device());
                    CudaDevice device = CudaDevice.open(group.device())) {
                NDArray sum = manager.ones(new Shape(16 << 20)); // 64 MiB
                group.allReduce(sum, ReduceOp.MAX).await();
                long free = device.freeMemory();
                long start = System.nanoTime();
                all(group.batchIsendIrecv(everyPair(manager)));
                lines.add(
                        "first messages of all pairs: %.0f ms, %d MiB of GPU memory"
                                .formatted(
                                        (System.nanoTime() - start) / 1e6,
                                        free - device.freeMemory() >> 20));
                double alone = millis(() -> List.of(group.allReduce(sum, ReduceOp.MAX)));
                lines.add("all-reduce of 64 MiB: %.3f ms".formatted(alone));
                for (int kib : new int[] {1, 1 << 10, 64 << 10}) {
                    messages(manager, kib, sum, alone);
                }
            }
            return lines;
        }

        private List<P2pOp> everyPair(NDManager manager) {
            List<P2pOp> ops = new ArrayList<>();
            for (int peer = 0; peer < group.worldSize(); peer++) {
                if (peer != group.rank()) {
                    ops.add(P2pOp.send(manager.ones(new Shape(1)), peer, 0));
                    ops.add(P2pOp.recv(manager.zeros(new Shape(1)), peer, 0));
                }
            }
            return ops;
        }

        /** Rank 0 and 1 exchange messages; the other ranks only take part in the collectives. */
        private void messages(NDManager manager, int kib, NDArray sum, double alone) {
            int rank = group.rank();
            int peer = 1 - rank;
            NDArray out = manager.full(new Shape(kib * 256L), (float) rank);
            NDArray in = manager.full(new Shape(kib * 256L), -1f);
            Supplier<List<Work>> oneWay =
                    () ->
                            rank > 1
                                    ? List.of()
                                    : List.of(
                                            rank == 0
                                                    ? group.send(out, 1, 0)
                                                    : group.recv(in, 0, 0));
            Supplier<List<Work>> bothWays =
                    () ->
                            rank > 1
                                    ? List.of()
                                    : group.batchIsendIrecv(
                                            List.of(
                                                    P2pOp.send(out, peer, 0),
                                                    P2pOp.recv(in, peer, 0)));
            double one = millis(oneWay);
            double both = millis(bothWays);
            if (rank < 2) {
                assertEquals(peer, in.min().getFloat());
                assertEquals(peer, in.max().getFloat());
            }
            double beside =
                    millis(
                            () -> {
                                List<Work> works = new ArrayList<>();
                                works.add(group.allReduce(sum, ReduceOp.MAX));
                                works.addAll(bothWays.get());
                                return works;
                            });
            double gib = kib / 1024.0 / 1024.0;
            lines.add(
                    ("%d KiB: one way %.3f ms (%.0f GiB/s), both ways %.3f ms (%.0f GiB/s each),"
                                    + " both ways beside an all-reduce of 64 MiB %.3f ms (one after"
                                    + " the other %.3f)")
                            .formatted(
                                    kib,
                                    one,
                                    gib / one * 1000,
                                    both,
                                    gib / both * 1000,
                                    beside,
                                    alone + both));
        }

        /** Returns the median time of a round, from its calls to the end of its works. */
        private double millis(Supplier<List<Work>> round) {
            double[] millis = new double[ROUNDS];
            for (int i = -WARM_UP; i < ROUNDS; i++) {
                group.barrier().await();
                long start = System.nanoTime();
                all(round.get());
                millis[Math.max(i, 0)] = (System.nanoTime() - start) / 1e6;
            }
            Arrays.sort(millis);
            return millis[ROUNDS / 2];
        }

        private static void all(List<Work> works) {
            works.forEach(Work::await);
        }
    }
}
