// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import org.djlx.collectives.launch.Launch;
import org.djlx.collectives.launch.cli.HelpCommand;
import org.djlx.collectives.launch.cli.RootCommand;
import picocli.CommandLine;
import picocli.CommandLine.Command;

/** The program of {@code java -jar text-generation.jar}: {@code serve} and {@code launch}. */
@Command(
        name = "java -jar text-generation.jar",
        description = "Serves language models over HTTP.",
        synopsisSubcommandLabel = "COMMAND",
        subcommands = {
            ServeCommand.class,
            ServeModelCommand.class,
            Launch.class,
            HelpCommand.class
        })
public final class Main extends RootCommand {

    /** Runs a command and ends the JVM with its exit code. */
    public static void main(String[] args) {
        new Main().runAndExit(args);
    }

    static CommandLine commandLine() {
        return new Main().build();
    }
}
