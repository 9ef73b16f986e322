// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Supplier;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.djlx.collectives.NcclOptions;
import org.djlx.collectives.P2pOp;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.collectives.launch.cli.CliCommand;
import org.djlx.collectives.launch.cli.Gpus;
import org.djlx.nativeops.cuda.CudaDevice;
import picocli.CommandLine.Command;

/** {@code bench-messages}: what messages of {@code nccl} cost by where they run. */
@Command(
        name = "bench-messages",
        description = {
            "Measures messages of backend nccl on all GPUs, with a thread a rank, on the group's"
                    + " communicator and on pair communicators: first messages of all pairs, then"
                    + " messages between ranks 0 and 1, alone and beside an all-reduce of 64 MiB.",
            "Medians of rank 0 in ms, from the call to the end. Each mode runs twice, in turns; the"
                    + " first turn also warms up the JVM."
        })
final class MessageBenchCommand extends CliCommand {

    private static final int WARM_UP = 20;
    private static final int ROUNDS = 50;

    @Override
    public Integer call() {
        Gpus.require(2);
        Device[] gpus =
                IntStream.range(0, Gpus.count()).mapToObj(Device::gpu).toArray(Device[]::new);
        print("communicators, bytes: ms one way, both ways, both ways beside the all-reduce%n");
        for (boolean pairs : new boolean[] {false, true, false, true}) {
            NcclOptions options =
                    NcclOptions.builder().optDevices(gpus).optPairCommunicators(pairs).build();
            List<ProcessGroup> groups = ProcessGroups.local("nccl", gpus.length, options);
            try {
                String name = pairs ? "pairs" : "group";
                ProcessGroups.run(groups, group -> measure(name, group))
                        .get(0)
                        .forEach(this::print);
            } finally {
                groups.forEach(ProcessGroup::destroy);
            }
        }
        return 0;
    }

    private static List<String> measure(String name, ProcessGroup group) {
        List<String> lines = new ArrayList<>();
        boolean idle = group.rank() > 1;
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch");
                CudaDevice device = CudaDevice.open(group.device())) {
            NDArray sum = manager.ones(new Shape(16 << 20));
            Supplier<List<Work>> allReduce = () -> List.of(group.allReduce(sum, ReduceOp.MAX));
            double alone = median(group, allReduce);
            List<P2pOp> all = new ArrayList<>();
            for (int peer = 0; peer < group.worldSize(); peer++) {
                all.addAll(peer == group.rank() ? List.of() : exchange(manager, 1, peer));
            }
            long free = device.freeMemory();
            double first = millis(() -> messages(group, all));
            lines.add(
                    ("%s: all-reduce of 64 MiB %.3f, first messages of all pairs %.0f, %d MiB of"
                                    + " GPU memory%n")
                            .formatted(name, alone, first, free - device.freeMemory() >> 20));
            for (int bytes : new int[] {1 << 10, 1 << 20, 64 << 20}) {
                List<P2pOp> both =
                        idle ? List.of() : exchange(manager, bytes / 4, 1 - group.rank());
                List<P2pOp> one = idle ? both : both.subList(group.rank(), group.rank() + 1);
                Supplier<List<Work>> beside =
                        () ->
                                Stream.of(allReduce.get(), messages(group, both))
                                        .flatMap(List::stream)
                                        .toList();
                lines.add(
                        "%s, %d: %.3f, %.3f, %.3f%n"
                                .formatted(
                                        name,
                                        bytes,
                                        median(group, () -> messages(group, one)),
                                        median(group, () -> messages(group, both)),
                                        median(group, beside)));
            }
        }
        return lines;
    }

    private static List<P2pOp> exchange(NDManager manager, int elements, int peer) {
        return List.of(
                P2pOp.send(manager.ones(new Shape(elements)), peer, 0),
                P2pOp.recv(manager.zeros(new Shape(elements)), peer, 0));
    }

    private static List<Work> messages(ProcessGroup group, List<P2pOp> ops) {
        return ops.isEmpty() ? List.of() : group.batchIsendIrecv(ops);
    }

    private static double median(ProcessGroup group, Supplier<List<Work>> round) {
        double[] times = new double[ROUNDS];
        for (int i = -WARM_UP; i < ROUNDS; i++) {
            group.barrier().await();
            times[Math.max(i, 0)] = millis(round);
        }
        return Stats.median(times);
    }

    private static double millis(Supplier<List<Work>> round) {
        long start = System.nanoTime();
        round.get().forEach(Work::await);
        return (System.nanoTime() - start) / 1e6;
    }
}
