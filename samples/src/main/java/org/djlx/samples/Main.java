/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples;

import java.io.PrintWriter;
import picocli.CommandLine;
import picocli.CommandLine.Command;
import picocli.CommandLine.Option;
import picocli.CommandLine.ParameterException;

/**
 * The command line of the samples; each sample is a subcommand.
 *
 * <p>Exit codes: 0 for success, 1 for a failure, 2 for bad arguments; {@code launch} returns the
 * code of the rank that failed first. An error is one line on stderr, a stack trace only with
 * {@code --verbose}.
 */
@Command(
        name = "samples/run.sh",
        description = "Samples of DJL Collectives.",
        synopsisSubcommandLabel = "COMMAND",
        subcommands = {
            MlpCommand.class,
            OpCommand.class,
            BenchCommand.class,
            BenchCompareCommand.class,
            LaunchCommand.class,
            FlightCommand.class,
            SupportCommand.class,
            TopologyCommand.class,
            GpuBenchCommand.class
        })
public final class Main {

    @Option(
            names = {"-h", "--help"},
            usageHelp = true,
            scope = CommandLine.ScopeType.INHERIT,
            description = "Shows this help.")
    private boolean help;

    @Option(
            names = "--verbose",
            scope = CommandLine.ScopeType.INHERIT,
            description = "Shows the stack trace of an error.")
    private boolean verbose;

    private Main() {}

    /**
     * Runs a sample and exits with its code.
     *
     * @param args the subcommand and its arguments
     */
    public static void main(String[] args) {
        System.exit(run(args));
    }

    /**
     * Runs a sample.
     *
     * @param args the subcommand and its arguments
     * @return the exit code
     */
    public static int run(String... args) {
        return commandLine().execute(args);
    }

    static CommandLine commandLine() {
        Main main = new Main();
        CommandLine root = new CommandLine(main);
        root.setCaseInsensitiveEnumValuesAllowed(true);
        // Arguments that are passed on to a rank's main may begin with @.
        root.setExpandAtFiles(false);
        root.setParameterExceptionHandler((e, args) -> badArguments(e));
        root.setExecutionExceptionHandler((e, command, result) -> main.failure(e, command));
        root.getSubcommands().get("launch").setStopAtPositional(true);
        return root;
    }

    private static int badArguments(ParameterException e) {
        CommandLine command = e.getCommandLine();
        PrintWriter err = command.getErr();
        err.println("error: " + e.getMessage());
        if (!CommandLine.UnmatchedArgumentException.printSuggestions(e, err)) {
            err.println("Try: " + command.getCommandSpec().qualifiedName() + " --help");
        }
        return command.getCommandSpec().exitCodeOnInvalidInput();
    }

    private int failure(Exception e, CommandLine command) {
        PrintWriter err = command.getErr();
        if (verbose) {
            e.printStackTrace(err);
        } else {
            err.println("error: " + (e.getMessage() == null ? e : e.getMessage()));
            err.println("(--verbose shows the stack trace)");
        }
        return command.getCommandSpec().exitCodeOnExecutionException();
    }
}
