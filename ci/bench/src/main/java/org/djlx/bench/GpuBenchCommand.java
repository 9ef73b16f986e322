// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import static org.djlx.collectives.launch.cli.UsageException.refuseIf;

import java.io.IOException;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.djlx.bench.GpuBenchCase.Operation;
import org.djlx.collectives.launch.cli.Gpus;
import org.djlx.collectives.launch.cli.RankOptions;
import org.djlx.collectives.launch.cli.Ranks;
import org.djlx.collectives.store.HashStore;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.NativeVersions;
import org.djlx.nativeops.cuda.CudaDevice;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;

/** {@code bench-gpu}: compares all-reduce and the fused operators on GPUs with NCCL and PyTorch. */
@Command(
        name = "bench-gpu",
        description = {
            "Measures all-reduce and the fused operators in bfloat16 on GPUs of this host, in turns"
                + " with NCCL and libtorch's matmul, and with PyTorch where it is found: called by"
                + " the host after 200 warm-up calls, the first 20 also reported separately, and"
                + " replayed from CUDA graphs. Checks each result against float64. Ranks are"
                + " threads or, started by 'launch', processes.",
            "Times are the slowest rank's medians in microseconds between GPU events; columns"
                + " 'host' are times of the calling thread. More ranks than GPUs share GPUs; NCCL"
                + " does not allow that and has no column then."
        })
final class GpuBenchCommand extends ReportCommand {

    private static final int MAX_RANKS = 8;
    // The operations that PyTorch runs, too.
    private static final Set<Operation> OF_TORCH =
            EnumSet.of(
                    Operation.allReduce, Operation.allGatherMatmul, Operation.matmulReduceScatter);

    // CudaP2pOptions.Builder.optSharedGpus explains these variables.
    private static final Map<String, String> SHARING =
            Map.of("CUDA_MODULE_LOADING", "EAGER", "CUDA_DEVICE_MAX_CONNECTIONS", "32");

    @Mixin private final RankOptions options = new RankOptions().ranksOfGpus().most(MAX_RANKS);

    @Option(
            names = "--bytes",
            paramLabel = "SIZE",
            split = ",",
            defaultValue = GpuBenchPlan.BYTES,
            description =
                    "Sizes of all-reduces and broadcasts (bcast:SIZE), of a rank's part of"
                            + " all-gathers (ag:SIZE) and reduce-scatters (rs:SIZE), and of what a"
                            + " rank sends to each rank in an all-to-all (a2a:SIZE); or none.")
    private List<String> bytes;

    @Option(
            names = "--shapes",
            paramLabel = "SHAPE",
            split = ",",
            defaultValue = GpuBenchPlan.SHAPES,
            description =
                    "Unsharded shapes MxNxK of both fused operators, or none. ag:MxNxK or rs:MxNxK:"
                        + " of one operator. tiny: 16 times the number of ranks. llama-8b,"
                        + " llama-70b: the MLP of a model, with M from 16 to 32768, or for example"
                        + " llama-8b:64-512. square: Mx8192x8192 with M from 256 to 8192, or for"
                        + " example square:256-512. gathered:SHAPE, fused:SHAPE, pipelined:SHAPE or"
                        + " nccl:SHAPE: with that path forced. norm:8x4096: an all-reduce + RMSNorm"
                        + " of 8 rows. norms: the norms of decode steps. experts:512x2048x8: 512"
                        + " tokens of 2048 elements, each sent to 8 of 128 experts and back.")
    private List<String> shapes;

    @Option(
            names = "--rounds",
            description = "The number of rounds, each of 5 calls and 2 graph launches.")
    private int rounds = 20;

    @Option(
            names = "--torch",
            paramLabel = "PYTHON",
            description =
                    "A Python with PyTorch, such as python3: measures PyTorch, too, or reports why"
                            + " it cannot.")
    private String python;

    @Override
    public Integer call() throws Exception {
        options.check();
        refuseIf(rounds < 1, "--rounds must be at least 1, not %s".formatted(rounds));
        GpuBenchPlan.cases(shapes, bytes, 1); // Checks the shapes before the GPUs.
        Gpus.require(1, NativeLibrary.NCCL, NativeLibrary.NVRTC);
        Ranks here = options.here();
        int worldSize = here.worldSize();
        int threads = here.here().size();
        int gpus = Math.min(worldSize, CudaDevice.count());
        if (gpus < worldSize && !System.getenv().entrySet().containsAll(SHARING.entrySet())) {
            progress(
                    "%d ranks share %d GPUs: without %s in the environment they may wait for each"
                            + " other until they time out",
                    worldSize, gpus, SHARING);
        }
        List<GpuBenchCase> cases = GpuBenchPlan.cases(shapes, bytes, worldSize);
        GpuBenchJob job = new GpuBenchJob(cases, rounds, threads, gpus, new HashStore());
        List<Boolean> correct =
                here.run(
                        "shm",
                        control -> {
                            Meeting meeting = new Meeting(control);
                            if (control.rank() > 0) {
                                return job.run(meeting, seconds -> {}, (wanted, row) -> {});
                            }
                            try (TorchPeer torch =
                                    TorchPeer.start(python, "torch_peer.py", worldSize)) {
                                return report(job, meeting, torch, threads, gpus);
                            }
                        });
        return correct.contains(false) ? 1 : 0;
    }

    /** Runs rank 0, which reports. */
    private boolean report(GpuBenchJob job, Meeting meeting, TorchPeer torch, int threads, int gpus)
            throws IOException {
        int worldSize = meeting.control().worldSize();
        begin(
                "all_reduce and fused operators, bfloat16, a "
                        + (threads == worldSize ? "thread" : "process")
                        + " a rank",
                NativeVersions.query());
        put("gpus", Gpus.names().subList(0, gpus));
        put("ranks", worldSize);
        put("rounds", rounds);
        if (torch != null) {
            put("torch", torch.description());
        }
        List<GpuBenchRow> rows = new ArrayList<>();
        boolean right =
                job.run(
                        meeting,
                        seconds -> put("groupSeconds", seconds),
                        (measured, row) -> {
                            rows.add(withTorch(torch, measured, row));
                            put("rows", rows);
                            store(); // After each row, so a later failure loses nothing.
                            progress("%s", measured);
                        });
        print("bfloat16, microseconds, replayed and called%n%n");
        printTables();
        return right;
    }

    /** Adds PyTorch's times to a row: they are measured now, while the ranks are idle. */
    private GpuBenchRow withTorch(TorchPeer torch, GpuBenchCase measured, GpuBenchRow row) {
        // Without PyTorch, the entry "torch" of the report has the cause. The peer has no
        // all-reduce + RMSNorm, no other collectives, and no paths.
        boolean both =
                torch != null
                        && !torch.version().isEmpty()
                        && measured.path() == null
                        && OF_TORCH.contains(measured.operation());
        return both ? torch.measure(row, measured.turns(row.ranks()), rounds) : row;
    }
}
