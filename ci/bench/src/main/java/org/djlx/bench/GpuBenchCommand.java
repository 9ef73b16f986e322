/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.bench;

import java.io.IOException;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.NativeVersions;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.samples.common.Gpus;
import org.djlx.samples.common.RankOptions;
import org.djlx.samples.common.Ranks;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.Spec;

/** {@code bench-gpu}: compares all-reduce and the fused operators on GPUs with NCCL and PyTorch. */
@Command(
        name = "bench-gpu",
        description = {
            "Measures all-reduce and the fused operators in bfloat16 on GPUs of this host, in turns"
                + " with NCCL and libtorch's matmul, and with PyTorch where it is found: called by"
                + " the host after 200 warm-up calls, of which the first 20 have a column, and"
                + " replayed from CUDA graphs. Checks each result against float64. Ranks are"
                + " threads or, started by 'launch', processes.",
            "Times are the slowest rank's medians in microseconds between GPU events; columns"
                + " 'host' are times of the calling thread. More ranks than GPUs share GPUs; NCCL"
                + " does not allow that and has no column then."
        })
public final class GpuBenchCommand implements Callable<Integer> {

    private static final int MAX_RANKS = 8;
    private static final Duration TORCH_PATIENCE = Duration.ofSeconds(120);

    // CudaP2pOptions.Builder.optSharedGpus says why.
    private static final Map<String, String> SHARING =
            Map.of("CUDA_MODULE_LOADING", "EAGER", "CUDA_DEVICE_MAX_CONNECTIONS", "32");

    @Spec private CommandSpec spec;

    @Mixin private final RankOptions options = new RankOptions().ranksOfGpus().most(MAX_RANKS);

    @Option(
            names = "--bytes",
            paramLabel = "SIZE",
            split = ",",
            defaultValue = GpuBenchPlan.BYTES,
            description = "Sizes of all-reduces, or none; ${DEFAULT-VALUE} if not given.")
    private List<String> bytes;

    @Option(
            names = "--shapes",
            paramLabel = "SHAPE",
            split = ",",
            defaultValue = GpuBenchPlan.SHAPES,
            description =
                    "Unsharded shapes of the fused operators, MxNxK, or none; with ag: or rs:"
                            + " before, of one of them; tiny is 16 for each rank; llama-8b and"
                            + " llama-70b are a model's, with M from 16 to 32768, or for example"
                            + " llama-8b:64-512; norm:8x4096 is an all-reduce + RMSNorm of 8 rows,"
                            + " norms are those of decoding. ${DEFAULT-VALUE} if not given.")
    private List<String> shapes;

    @Option(
            names = "--rounds",
            defaultValue = "20",
            description =
                    "Turns of 5 calls and 2 launches of a graph each; ${DEFAULT-VALUE} if not"
                            + " given.")
    private int rounds;

    @Option(
            names = "--torch",
            paramLabel = "PYTHON",
            description =
                    "A Python with PyTorch, such as python3: measures PyTorch, too, or reports why"
                            + " it cannot.")
    private String python;

    @Mixin private ReportOptions reports;

    private GpuBenchCommand() {}

    @Override
    public Integer call() throws Exception {
        options.check();
        if (rounds < 1) {
            throw new ParameterException(
                    spec.commandLine(), "--rounds must be at least 1, not " + rounds);
        }
        // Checks the shapes first.
        cases(1);
        Gpus.require(1, NativeLibrary.NCCL, NativeLibrary.NVRTC);
        Ranks here = options.here();
        int worldSize = here.worldSize();
        int threads = here.here().size();
        int gpus = Math.min(worldSize, CudaDevice.count());
        if (gpus < worldSize && !System.getenv().entrySet().containsAll(SHARING.entrySet())) {
            spec.commandLine()
                    .getErr()
                    .printf(
                            "%d ranks share %d GPUs: without %s in the environment they may wait"
                                    + " for each other until they time out%n",
                            worldSize, gpus, SHARING);
        }
        List<GpuBenchCase> cases = cases(worldSize);
        GpuBenchJob job = new GpuBenchJob(cases, rounds, threads, gpus);
        List<Boolean> correct =
                here.run(
                        "shm",
                        control -> {
                            Meeting meeting = new Meeting(control);
                            if (control.rank() > 0) {
                                return job.run(meeting, seconds -> {}, (wanted, row) -> {});
                            }
                            try (GpuBenchResults results = results(worldSize, threads, gpus)) {
                                boolean right = job.run(meeting, results::began, results::add);
                                results.print(spec.commandLine().getOut());
                                return right;
                            }
                        });
        return correct.contains(false) ? 1 : 0;
    }

    private GpuBenchResults results(int worldSize, int threads, int gpus) throws IOException {
        BenchReport report =
                reports.report(
                        "all_reduce and fused operators, bfloat16, a "
                                + (threads == worldSize ? "thread" : "process")
                                + " a rank",
                        NativeVersions.query());
        report.put("gpus", Gpus.names().subList(0, gpus));
        report.put("ranks", worldSize);
        report.put("rounds", rounds);
        TorchPeer torch =
                python == null
                        ? null
                        : TorchPeer.start(
                                python,
                                TorchPeer.script("torch_peer.py"),
                                List.of("--ranks", Integer.toString(worldSize)),
                                TORCH_PATIENCE);
        return new GpuBenchResults(
                report, reports.json(), torch, rounds, spec.commandLine().getErr());
    }

    private List<GpuBenchCase> cases(int worldSize) {
        try {
            return GpuBenchPlan.cases(shapes, bytes, worldSize);
        } catch (IllegalArgumentException e) {
            throw new ParameterException(spec.commandLine(), e.getMessage(), e);
        }
    }
}
