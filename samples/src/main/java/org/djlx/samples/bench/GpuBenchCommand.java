/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.bench;

import ai.djl.engine.Engine;
import ai.djl.ndarray.NDManager;
import java.io.IOException;
import java.io.PrintWriter;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.Callable;
import java.util.function.Function;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.IntStream;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.nativeops.CudaDevice;
import org.djlx.nativeops.CudaStream;
import org.djlx.nativeops.CudaStreamGuard;
import org.djlx.nativeops.GpuTopology;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.NativeVersions;
import org.djlx.nativeops.Torch;
import org.djlx.samples.Gpus;
import org.djlx.samples.Ranks;
import org.djlx.samples.TextTable;
import org.djlx.samples.bench.GpuBenchCase.Operation;
import picocli.CommandLine.Command;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.Spec;

/** {@code bench-gpu}: all-reduce and the fused operators on GPUs, beside NCCL. */
@Command(
        name = "bench-gpu",
        description = {
            "Times all-reduce and the fused operators in bfloat16 on GPUs of this host, a thread a"
                    + " rank, in turns with the same by NCCL and libtorch's matmul, after 200"
                    + " calls, of which the first 20 are kept apart. Checks each result against"
                    + " float64.",
            "Each figure is a median in microseconds, of the slowest rank: between events of the"
                    + " GPU, calls by the host included; in columns 'host' what a call takes the"
                    + " thread. More ranks than GPUs share them; NCCL refuses that, and has no"
                    + " column then."
        })
public final class GpuBenchCommand implements Callable<Integer> {

    private static final int MAX_RANKS = 8;
    private static final String NONE = "none";
    private static final Pattern SHAPE = Pattern.compile("(\\d{1,6})x(\\d{1,6})x(\\d{1,6})");

    @Spec private CommandSpec spec;

    @Option(
            names = "--ranks",
            paramLabel = "N",
            description = "Number of ranks, at most 8; the number of GPUs if not given.")
    private Integer ranks;

    @Option(
            names = "--bytes",
            paramLabel = "SIZE",
            split = ",",
            defaultValue = "1K,4K,16K,64K,256K,1M,4M,16M,64M",
            description = "All-reduces to measure, or none; ${DEFAULT-VALUE} if not given.")
    private List<String> bytes;

    @Option(
            names = "--shapes",
            paramLabel = "MxNxK",
            split = ",",
            defaultValue =
                    "tiny,512x8192x8192,512x1024x8192,4096x8192x8192,8192x8192x8192,"
                            + "8192x28672x8192,16384x28672x8192",
            description =
                    "Unsharded shapes of the fused operators, or none; tiny is 16 for each rank."
                            + " ${DEFAULT-VALUE} if not given.")
    private List<String> shapes;

    @Option(
            names = "--rounds",
            defaultValue = "10",
            description = "Turns of 10 calls each; ${DEFAULT-VALUE} if not given.")
    private int rounds;

    @Option(
            names = "--json",
            paramLabel = "FILE",
            description = "Where the result is stored, after each row again.")
    private Path json;

    @Option(
            names = "--commit",
            paramLabel = "COMMIT",
            description = "The state of the code, to keep.")
    private String commit;

    private GpuBenchCommand() {}

    @Override
    public Integer call() throws IOException {
        Ranks.check(spec, "--ranks", ranks, false);
        if (ranks != null && ranks > MAX_RANKS) {
            throw new ParameterException(
                    spec.commandLine(), "--ranks must be at most " + MAX_RANKS + ", not " + ranks);
        }
        if (rounds < 1) {
            throw new ParameterException(
                    spec.commandLine(), "--rounds must be at least 1, not " + rounds);
        }
        // The shapes are read before anything else can fail.
        cases(1);
        Gpus.require(1, NativeLibrary.NCCL, NativeLibrary.NVRTC);
        int gpus = CudaDevice.count();
        int worldSize = ranks == null ? Math.min(MAX_RANKS, gpus) : ranks;
        return measure(worldSize, Math.min(gpus, worldSize), cases(worldSize));
    }

    private int measure(int worldSize, int gpus, List<GpuBenchCase> cases) throws IOException {
        boolean shared = gpus < worldSize;
        BenchReport report =
                new BenchReport(
                        "all_reduce and fused operators, bfloat16, a thread a rank",
                        commit,
                        NativeVersions.query());
        report.put("gpus", Gpus.names().subList(0, gpus));
        report.put("ranks", worldSize);
        report.put("rounds", rounds);
        Engine.getEngine("PyTorch").setRandomSeed(42);
        CudaP2pOptions options = options(shared);
        List<ProcessGroup> nccl =
                shared ? List.of() : ProcessGroups.local("nccl", worldSize, options.ncclOptions());
        List<ProcessGroup> ours = ProcessGroups.local("cuda_p2p", worldSize, options);
        List<GpuBenchRow> rows = new ArrayList<>();
        try {
            for (GpuBenchCase wanted : cases) {
                rows.add(measure(ours, nccl, wanted, gpus));
                report.put("rows", rows);
                if (json != null) {
                    // After each: hours on the machine are not lost with the last row.
                    report.store(json);
                }
                spec.commandLine().getErr().println(wanted);
            }
        } finally {
            ours.forEach(ProcessGroup::destroy);
            nccl.forEach(ProcessGroup::destroy);
        }
        PrintWriter out = spec.commandLine().getOut();
        out.printf(
                "%d ranks on %d GPUs, bfloat16, microseconds%n%n%s", worldSize, gpus, table(rows));
        out.flush();
        return rows.stream().allMatch(GpuBenchRow::correct) ? 0 : 1;
    }

    private GpuBenchRow measure(
            List<ProcessGroup> ours, List<ProcessGroup> nccl, GpuBenchCase wanted, int gpus) {
        Meeting meeting = new Meeting(ours.size());
        boolean shared = gpus < ours.size();
        return ProcessGroups.run(
                        ours,
                        group -> {
                            ProcessGroup other = nccl.isEmpty() ? null : nccl.get(group.rank());
                            try (CudaDevice device = CudaDevice.open(group.device());
                                    NDManager manager =
                                            NDManager.newBaseManager(group.device(), "PyTorch")) {
                                return onStream(
                                        device,
                                        shared,
                                        stream -> {
                                            try (Marks marks = new CudaMarks(device, stream)) {
                                                GpuBenchCase.Rank rank =
                                                        new GpuBenchCase.Rank(
                                                                group, other, manager, meeting,
                                                                marks);
                                                return wanted.measure(rank, gpus, rounds);
                                            }
                                        });
                            } catch (RuntimeException | Error e) {
                                meeting.leave();
                                throw e;
                            }
                        })
                .stream()
                .reduce(GpuBenchCase::slowest)
                .orElseThrow();
    }

    /** On the current stream or, as ranks that share a GPU wait for each other, on one's own. */
    private static <T> T onStream(CudaDevice device, boolean own, Function<CudaStream, T> body) {
        if (!own) {
            return body.apply(CudaStream.wrap(device, Torch.currentCudaStream(device.device())));
        }
        try (CudaStream stream = CudaStream.create(device)) {
            CudaStreamGuard guard = Torch.cudaStreamGuard(device.device(), stream.handle());
            try {
                return body.apply(stream);
            } finally {
                guard.close();
                device.synchronize();
            }
        }
    }

    private static CudaP2pOptions options(boolean shared) {
        CudaP2pOptions.Builder options = CudaP2pOptions.builder().optBufferSize(2L << 30);
        if (shared) {
            // NCCL cannot take over the large sizes, and NVML knows no link of a GPU with itself.
            options.optSharedGpus(true)
                    .optTwoShotBytes(64 << 20)
                    .optTopology(GpuTopology.Kind.FULLY_CONNECTED_NVLINK);
        }
        return options.build();
    }

    private List<GpuBenchCase> cases(int worldSize) {
        List<GpuBenchCase> cases = new ArrayList<>();
        try {
            // The tiny ones come first, so that their first calls are those of a new JVM.
            for (String shape : shapes) {
                if (!shape.equals(NONE)) {
                    cases.add(fused(Operation.allGatherMatmul, shape, worldSize));
                    cases.add(fused(Operation.matmulReduceScatter, shape, worldSize));
                }
            }
            for (String size : bytes) {
                if (!size.equals(NONE)) {
                    cases.add(GpuBenchCase.allReduce(Math.max(2, BenchCase.parse(size).size())));
                }
            }
        } catch (IllegalArgumentException e) {
            throw new ParameterException(spec.commandLine(), e.getMessage(), e);
        }
        return cases;
    }

    private static GpuBenchCase fused(Operation operation, String shape, int worldSize) {
        if (shape.equals("tiny")) {
            int side = 16 * worldSize;
            return GpuBenchCase.fused(operation, side, side, side);
        }
        Matcher matcher = SHAPE.matcher(shape);
        if (!matcher.matches()) {
            throw new IllegalArgumentException(
                    "'" + shape + "' is no shape, such as 512x8192x8192: M, N and K");
        }
        int[] mnk =
                IntStream.rangeClosed(1, 3).map(i -> Integer.parseInt(matcher.group(i))).toArray();
        for (int size : mnk) {
            if (size == 0 || size % worldSize != 0) {
                throw new IllegalArgumentException(
                        "the sizes of "
                                + shape
                                + " are not divisible by "
                                + Ranks.count(worldSize));
            }
        }
        return GpuBenchCase.fused(operation, mnk[0], mnk[1], mnk[2]);
    }

    /** Returns a line for each row. */
    static TextTable table(List<GpuBenchRow> rows) {
        TextTable table =
                new TextTable(
                        "operation",
                        "size",
                        "matmul",
                        "nccl",
                        "host",
                        "ours",
                        "host",
                        "first 20",
                        "driver",
                        "native",
                        "ratio",
                        "error",
                        "");
        for (GpuBenchRow row : rows) {
            CallTimes ours = row.columns().get(GpuBenchRow.OURS);
            CallTimes nccl = row.columns().get(GpuBenchRow.NCCL);
            CallTimes matmul = row.columns().get(GpuBenchRow.MATMUL);
            table.add(
                    row.operation(),
                    row.size(),
                    matmul == null ? "-" : number(matmul.gpuMicros()),
                    nccl == null ? "-" : number(nccl.gpuMicros()),
                    nccl == null ? "-" : number(nccl.hostMicros()),
                    number(ours.gpuMicros()),
                    number(ours.hostMicros()),
                    number(ours.firstHostMicros()),
                    number(ours.driverCalls()),
                    number(ours.otherNativeCalls()),
                    nccl == null
                            ? "-"
                            : String.format(
                                    Locale.ROOT, "%.2f", nccl.gpuMicros() / ours.gpuMicros()),
                    String.format(Locale.ROOT, "%.1e", row.error()),
                    row.correct() ? "" : "WRONG");
        }
        return table;
    }

    private static String number(double value) {
        return String.format(Locale.ROOT, "%.1f", value);
    }
}
