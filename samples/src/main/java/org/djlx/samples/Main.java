// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples;

import org.djlx.collectives.launch.LaunchCommand;
import org.djlx.collectives.launch.cli.HelpCommand;
import org.djlx.collectives.launch.cli.RootCommand;
import org.djlx.llm.server.ServeCommand;
import org.djlx.llm.server.ServeModelCommand;
import org.djlx.samples.finetune.FinetuneCommand;
import org.djlx.samples.flight.FlightCommand;
import org.djlx.samples.generate.GenerateCommand;
import org.djlx.samples.plan.PlanCommand;
import org.djlx.samples.support.SupportCommand;
import org.djlx.samples.topology.TopologyCommand;
import org.djlx.samples.train.TrainCommand;
import picocli.CommandLine;
import picocli.CommandLine.Command;

/**
 * The command line {@code samples/run.sh}. Only this class names the commands. Each has its own
 * package.
 */
@Command(
        name = "samples/run.sh",
        description = "Samples of DJL Collectives.",
        synopsisSubcommandLabel = "COMMAND",
        subcommands = {
            TrainCommand.class,
            FinetuneCommand.class,
            GenerateCommand.class,
            ServeCommand.class,
            ServeModelCommand.class,
            LaunchCommand.class,
            PlanCommand.class,
            FlightCommand.class,
            SupportCommand.class,
            TopologyCommand.class,
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
