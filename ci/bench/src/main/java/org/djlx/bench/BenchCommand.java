// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import java.util.List;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.launch.cli.CliCommand;
import org.djlx.collectives.launch.cli.RankOptions;
import org.djlx.collectives.launch.cli.Ranks;
import org.djlx.nativeops.host.ThreadBinding;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;
import picocli.CommandLine.Parameters;

/** {@code bench}: measures all-reduce and prints nccl-tests' table. */
@Command(
        name = "bench",
        description = {
            "Measures all-reduce on the CPU and prints nccl-tests' table: the median time of the"
                    + " slowest rank, and the Java heap that a call allocates.",
            "Ranks are threads, or processes; in a process started by 'launch' or torchrun, bench"
                    + " runs that process's rank."
        })
final class BenchCommand extends CliCommand {

    @Mixin
    private final RankOptions options = new RankOptions().ranks(2).processes().types("float32");

    @Option(
            names = "--backend",
            defaultValue = "shm",
            description = "shm, or mpi in a process that mpirun has started.")
    private String backend;

    @Option(names = "--bind", description = "Binds each rank's thread to a core, as mpirun does.")
    private boolean bind;

    @Parameters(
            paramLabel = "SIZE[:WARMUP:ITERATIONS]",
            description = "Sizes in bytes, such as 4K or 64M; 4K to 64M if not given.")
    private List<String> sizes;

    @Override
    public Integer call() throws Exception {
        options.check();
        int least = options.scalarType().itemSize();
        if (options.inProcesses()) {
            BenchCase.parse(sizes, least, options.count()); // Checks the sizes before the start.
            return Ranks.launch(spec(), options.count());
        }
        Ranks here = options.here();
        List<BenchCase> cases = BenchCase.parse(sizes, least, here.worldSize());
        return here.run(backend, group -> run(group, cases)).get(0);
    }

    /** Runs one rank; rank 0 reports. */
    private int run(ProcessGroup group, List<BenchCase> cases) throws InterruptedException {
        boolean reports = group.rank() == 0;
        if (bind) {
            ThreadBinding.bindToCore(group.rank());
        }
        try (BenchJob job = new BenchJob(group, options.scalarType())) {
            if (reports) {
                print("# all_reduce, %s%n%s%n", Ranks.count(group.worldSize()), BenchRow.HEADER);
            }
            long wrong = 0;
            for (BenchCase wanted : cases) {
                BenchRow row = job.measure(wanted);
                wrong += row.wrong();
                if (reports) {
                    print("%s%n", row);
                }
            }
            return wrong == 0 ? 0 : 1;
        }
    }
}
