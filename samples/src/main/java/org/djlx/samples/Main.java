/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples;

import java.io.PrintWriter;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.FileSystemException;
import java.nio.file.NoSuchFileException;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.djlx.samples.bench.BenchChartCommand;
import org.djlx.samples.bench.BenchCommand;
import org.djlx.samples.bench.BenchCompareCommand;
import org.djlx.samples.bench.BlockBenchCommand;
import org.djlx.samples.bench.CoalescedBenchCommand;
import org.djlx.samples.bench.DecodeBenchCommand;
import org.djlx.samples.bench.GpuBenchCommand;
import org.djlx.samples.bench.TrainBenchCommand;
import org.djlx.samples.flight.FlightCommand;
import org.djlx.samples.launch.LaunchCommand;
import org.djlx.samples.llama.GenerateCommand;
import org.djlx.samples.llama.ServeModelCommand;
import org.djlx.samples.mlp.MlpCommand;
import org.djlx.samples.op.OpCommand;
import org.djlx.samples.plan.PlanCommand;
import org.djlx.samples.serve.ServeCommand;
import org.djlx.samples.support.SupportCommand;
import org.djlx.samples.topology.TopologyCommand;
import org.djlx.samples.trace.TraceCommand;
import org.djlx.samples.train.TrainCommand;
import picocli.CommandLine;
import picocli.CommandLine.Command;
import picocli.CommandLine.MissingParameterException;
import picocli.CommandLine.Model.ArgSpec;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Model.OptionSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.Parameters;
import picocli.CommandLine.Spec;
import picocli.CommandLine.UnmatchedArgumentException;

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
            TrainCommand.class,
            GenerateCommand.class,
            ServeCommand.class,
            ServeModelCommand.class,
            OpCommand.class,
            BenchCommand.class,
            BenchCompareCommand.class,
            CoalescedBenchCommand.class,
            LaunchCommand.class,
            PlanCommand.class,
            FlightCommand.class,
            SupportCommand.class,
            TopologyCommand.class,
            GpuBenchCommand.class,
            BenchChartCommand.class,
            TrainBenchCommand.class,
            BlockBenchCommand.class,
            DecodeBenchCommand.class,
            TraceCommand.class
        })
public final class Main {

    private static final String EXAMPLE = "Example: ";

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

    @Spec private CommandSpec spec;

    private Main() {}

    /**
     * Runs a sample and exits with its code.
     *
     * @param args the subcommand and its arguments
     */
    public static void main(String[] args) {
        int code = run(args);
        // A PrintStream keeps to itself that it cannot write.
        if (System.out.checkError() && code == 0) {
            System.err.println("error: cannot write to stdout");
            code = 1;
        }
        System.exit(code);
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

    /**
     * Returns the command line, for tests that give it other streams.
     *
     * @return a new command line
     */
    public static CommandLine commandLine() {
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

    // Not picocli's own: its --help and the one that all commands have exclude each other.
    @Command(name = "help", description = "Shows the help of a command.")
    void showHelp(@Parameters(arity = "0..1", paramLabel = "COMMAND") String command) {
        CommandLine root = spec.commandLine();
        CommandLine wanted = command == null ? root : root.getSubcommands().get(command);
        if (wanted == null) {
            throw new ParameterException(root, "there is no command '" + command + "'");
        }
        wanted.usage(root.getOut());
    }

    private static int badArguments(ParameterException e) {
        CommandLine command = e.getCommandLine();
        PrintWriter err = command.getErr();
        err.println("error: " + text(e));
        if (!UnmatchedArgumentException.printSuggestions(e, err)) {
            String example = e instanceof MissingParameterException ? example(command) : "";
            err.println("Try: " + example + command.getCommandSpec().qualifiedName() + " --help");
        }
        return command.getCommandSpec().exitCodeOnInvalidInput();
    }

    /** Returns the example in a command's description, if there is one. */
    private static String example(CommandLine command) {
        return Stream.of(command.getCommandSpec().usageMessage().description())
                .filter(line -> line.startsWith(EXAMPLE))
                .map(line -> line.substring(EXAMPLE.length()) + ", or ")
                .findFirst()
                .orElse("");
    }

    private static String missing(MissingParameterException e) {
        if (e.getMissing().isEmpty() || !e.getMissing().stream().allMatch(ArgSpec::required)) {
            return e.getMessage(); // Such as an option's value.
        }
        return e.getMissing().stream()
                .map(
                        arg ->
                                arg instanceof OptionSpec option
                                        ? option.names()[0] + " " + option.paramLabel()
                                        : arg.paramLabel())
                .collect(
                        Collectors.joining(
                                " and ", e.getCommandLine().getCommandName() + " needs ", ""));
    }

    private static String text(Exception e) {
        if (e instanceof MissingParameterException missing) {
            return missing(missing);
        }
        if (e instanceof UnmatchedArgumentException unmatched
                && unmatched.getCommandLine().getParent() == null
                && !unmatched.isUnknownOption()) {
            return "there is no command '" + unmatched.getUnmatched().get(0) + "'";
        }
        if (e instanceof FileSystemException file && file.getReason() == null) {
            String reason = e.getClass().getSimpleName();
            if (e instanceof NoSuchFileException) {
                reason = "no such file or folder";
            } else if (e instanceof FileAlreadyExistsException) {
                reason = "a file is there already, and is no folder";
            }
            return file.getFile() + ": " + reason;
        }
        return e.getMessage() == null ? e.toString() : e.getMessage();
    }

    private int failure(Exception e, CommandLine command) {
        PrintWriter err = command.getErr();
        if (verbose) {
            e.printStackTrace(err);
        } else {
            err.println("error: " + text(e));
            err.println("(--verbose shows the stack trace)");
        }
        return command.getCommandSpec().exitCodeOnExecutionException();
    }
}
