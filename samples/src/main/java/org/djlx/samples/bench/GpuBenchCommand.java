/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.bench;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.io.PrintWriter;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.function.Supplier;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.fusedops.FusedOps;
import org.djlx.nativeops.CudaDevice;
import org.djlx.nativeops.CudaEvent;
import org.djlx.nativeops.CudaStream;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.ScalarType;
import org.djlx.nativeops.Torch;
import org.djlx.samples.Gpus;
import org.djlx.samples.TextTable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.Spec;

/** {@code bench-gpu}: all-reduce and the fused operators on GPUs, beside NCCL. */
@Command(
        name = "bench-gpu",
        description = {
            "Times all-reduce and the fused operators in bfloat16 on GPUs of this host, a thread a"
                    + " rank, beside the same by NCCL and libtorch's matmul.",
            "Each figure is a median of microseconds between events of the GPU, of the slowest"
                    + " rank, calls by the host included; in columns 'host' what the call alone"
                    + " takes the thread."
        })
public final class GpuBenchCommand implements Callable<Integer> {

    private static final int RUNS = 20;
    private static final int WARM_UP = 5;
    // Until the compiler of the JVM is done: calls by the host are most of the time of small sizes.
    private static final int JVM_WARM_UP = 5000;
    private static final int MAX_IN_FLIGHT = 50;
    private static final int[][] SHAPES = {
        {4096, 8192, 8192}, {8192, 8192, 8192}, {8192, 28672, 8192}, {16384, 28672, 8192}
    };

    @Spec private CommandSpec spec;

    @Option(
            names = "--ranks",
            paramLabel = "N",
            description = "Number of GPUs; all, at most 8, if not given.")
    private int ranks;

    private GpuBenchCommand() {}

    @Override
    public Integer call() {
        Gpus.require(Math.max(1, ranks), NativeLibrary.NCCL, NativeLibrary.NVRTC);
        int worldSize = ranks > 0 ? ranks : Math.min(8, CudaDevice.count());
        TextTable reductions =
                new TextTable("all-reduce, bytes", "nccl", "host", "cuda_p2p", "host", "ratio");
        TextTable fused =
                new TextTable(
                        "operator", "M, N, K", "matmul", "plain", "pipelined", "host", "ratio");
        List<ProcessGroup> nccl = ProcessGroups.local("nccl", worldSize, options().ncclOptions());
        List<ProcessGroup> p2p = ProcessGroups.local("cuda_p2p", worldSize, options());
        try {
            warmUp(nccl);
            warmUp(p2p);
            for (long bytes = 1 << 10; bytes <= 64 << 20; bytes *= 4) {
                Times plain = run(nccl, WARM_UP, allReduce(bytes));
                Times ours = run(p2p, WARM_UP, allReduce(bytes));
                reductions.add(
                        bytes,
                        micros(plain.gpu),
                        micros(plain.host),
                        micros(ours.gpu),
                        micros(ours.host),
                        ratio(plain, ours));
            }
            for (int[] shape : SHAPES) {
                fused(fused, p2p, shape, true);
                fused(fused, p2p, shape, false);
            }
        } finally {
            p2p.forEach(ProcessGroup::destroy);
            nccl.forEach(ProcessGroup::destroy);
        }
        PrintWriter out = spec.commandLine().getOut();
        out.printf("%d GPUs, bfloat16, microseconds%n%n%s%n%s", worldSize, reductions, fused);
        out.flush();
        return 0;
    }

    private static void warmUp(List<ProcessGroup> groups) {
        int side = 16 * groups.size();
        run(groups, JVM_WARM_UP, allReduce(1 << 10));
        run(groups, JVM_WARM_UP, operator(side, side, side, groups.size(), true));
        run(groups, JVM_WARM_UP, operator(side, side, side, groups.size(), false));
    }

    private static CudaP2pOptions options() {
        return CudaP2pOptions.builder().optBufferSize(2L << 30).build();
    }

    private static String micros(double value) {
        return String.format("%.1f", value);
    }

    private static String ratio(Times plain, Times ours) {
        return String.format("%.2f", plain.gpu / ours.gpu);
    }

    private static Body allReduce(long bytes) {
        return (group, manager) -> {
            NDArray tensor = random(manager, 1, (int) (bytes / 2));
            return () -> {
                group.allReduce(tensor, ReduceOp.AVG).blockCurrentStream();
                return null;
            };
        };
    }

    private static Body operator(int m, int n, int k, int worldSize, boolean gather) {
        return (group, manager) -> {
            if (gather) {
                NDArray a = random(manager, m / worldSize, k);
                List<NDArray> b = List.of(random(manager, k, n / worldSize));
                return () -> FusedOps.allGatherMatmul(a, b, 0, group, false).outputs().get(0);
            }
            NDArray a = random(manager, m, k / worldSize);
            NDArray b = random(manager, k / worldSize, n);
            return () -> FusedOps.matmulReduceScatter(a, b, ReduceOp.SUM, 0, group);
        };
    }

    private static void fused(
            TextTable table, List<ProcessGroup> groups, int[] shape, boolean gather) {
        int worldSize = groups.size();
        int m = shape[0];
        int n = shape[1];
        int k = shape[2];
        Body matmul =
                (group, manager) -> {
                    NDArray a = random(manager, m, gather ? k : k / worldSize);
                    NDArray b =
                            random(manager, gather ? k : k / worldSize, gather ? n / worldSize : n);
                    return () -> a.matMul(b);
                };
        Body operator = operator(m, n, k, worldSize, gather);
        Times alone = run(groups, WARM_UP, matmul);
        Times plain;
        try (FusedOps.Scope forced = FusedOps.forceFallback()) {
            plain = run(groups, WARM_UP, operator);
            forced.toString();
        }
        Times pipelined = run(groups, WARM_UP, operator);
        table.add(
                gather ? "allGatherMatmul" : "matmulReduceScatter",
                m + ", " + n + ", " + k,
                micros(alone.gpu),
                micros(plain.gpu),
                micros(pipelined.gpu),
                micros(pipelined.host),
                ratio(plain, pipelined));
    }

    private static NDArray random(NDManager manager, int rows, int columns) {
        try (NDArray floats = manager.randomNormal(new Shape(rows, columns))) {
            return Torch.cast(floats, ScalarType.BFLOAT16);
        }
    }

    /** Prepares what is timed. */
    @FunctionalInterface
    private interface Body {
        Supplier<NDArray> prepare(ProcessGroup group, NDManager manager);
    }

    /** Medians in microseconds. */
    private record Times(double gpu, double host) {

        static Times slowest(Times a, Times b) {
            return new Times(Math.max(a.gpu, b.gpu), Math.max(a.host, b.host));
        }
    }

    private static Times run(List<ProcessGroup> groups, int warmUp, Body body) {
        return ProcessGroups.run(groups, group -> time(group, warmUp, body)).stream()
                .reduce(Times::slowest)
                .orElseThrow();
    }

    private static Times time(ProcessGroup group, int warmUp, Body body) {
        double[] gpu = new double[RUNS];
        double[] host = new double[RUNS];
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch");
                CudaDevice device = CudaDevice.open(group.device())) {
            CudaStream stream = CudaStream.wrap(device, Torch.currentCudaStream(group.device()));
            Supplier<NDArray> call = body.prepare(group, manager);
            List<CudaEvent> events = new ArrayList<>();
            group.barrier().await();
            for (int run = -warmUp; run < RUNS; run++) {
                if (run < 0 && run % MAX_IN_FLIGHT == 0) {
                    device.synchronize();
                }
                if (run == 0) {
                    events.add(event(device, stream));
                }
                long start = System.nanoTime();
                NDArray result = call.get();
                long nanos = System.nanoTime() - start;
                if (run >= 0) {
                    host[run] = nanos / 1000.0;
                    events.add(event(device, stream));
                }
                if (result != null) {
                    result.close();
                }
            }
            device.synchronize();
            for (int run = 0; run < RUNS; run++) {
                gpu[run] = 1000.0 * events.get(run + 1).elapsedMillisSince(events.get(run));
            }
            events.forEach(CudaEvent::close);
        }
        return new Times(median(gpu), median(host));
    }

    private static CudaEvent event(CudaDevice device, CudaStream stream) {
        CudaEvent event = CudaEvent.createTiming(device);
        event.record(stream);
        return event;
    }

    private static double median(double[] values) {
        Arrays.sort(values);
        return values[values.length / 2];
    }
}
