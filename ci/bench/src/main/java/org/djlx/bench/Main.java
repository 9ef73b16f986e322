// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import org.djlx.collectives.launch.LaunchCommand;
import org.djlx.collectives.launch.cli.HelpCommand;
import org.djlx.collectives.launch.cli.RootCommand;
import picocli.CommandLine;
import picocli.CommandLine.Command;

/** The command line {@code ci/bench/run.sh}. */
@Command(
        name = "ci/bench/run.sh",
        description = "Benchmarks of DJL Collectives beside other programs.",
        synopsisSubcommandLabel = "COMMAND",
        subcommands = {
            BenchCommand.class,
            BenchCompareCommand.class,
            GpuBenchCommand.class,
            MessageBenchCommand.class,
            PagesCommand.class,
            CheckCommand.class,
            BlockBenchCommand.class,
            TrainBenchCommand.class,
            DecodeBenchCommand.class,
            LlamaCppCommand.class,
            EmbedBenchCommand.class,
            LaunchCommand.class,
            HelpCommand.class
        })
public final class Main extends RootCommand {

    public static void main(String[] args) {
        new Main().runAndExit(args);
    }

    public static CommandLine commandLine() {
        return new Main().build();
    }
}
