// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import org.djlx.collectives.launch.LaunchCommand;
import org.djlx.collectives.launch.cli.HelpCommand;
import org.djlx.collectives.launch.cli.RootCommand;
import picocli.CommandLine;
import picocli.CommandLine.Command;

/** The command line of {@link Main}: {@code serve} and {@code launch}. */
@Command(
        name = "java -jar text-generation.jar",
        description = "Serves language models over HTTP.",
        synopsisSubcommandLabel = "COMMAND",
        subcommands = {
            ServeCommand.class,
            ServeModelCommand.class,
            LaunchCommand.class,
            HelpCommand.class
        })
public final class Commands extends RootCommand {

    /** Runs a command and ends the JVM with its exit code. */
    public static void main(String[] args) {
        new Commands().runAndExit(args);
    }

    static CommandLine commandLine() {
        return new Commands().build();
    }
}
