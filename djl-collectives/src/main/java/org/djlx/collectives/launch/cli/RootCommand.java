// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.launch.cli;

import java.io.IOException;
import java.io.PrintWriter;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.List;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import picocli.CommandLine;
import picocli.CommandLine.MissingParameterException;
import picocli.CommandLine.Model.ArgSpec;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Model.OptionSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.UnmatchedArgumentException;

/**
 * The root command, with the options of all commands. A subclass names its commands.
 *
 * <p>Exit codes: 0 for success, 1 for a failed run, 2 for wrong arguments or a missing input file,
 * 141 (SIGPIPE), without a message, if the reader of a pipe at stdout has gone. An error is one
 * line on stderr; {@code --verbose} adds the stack trace.
 */
public abstract class RootCommand {

    private static final String EXAMPLE = "Example: ";
    private static final Path STDOUT = Path.of("/proc/self/fd/1");
    private static final int SIGPIPE = 128 + 13;
    private static final Set<Class<?>> WHOLE =
            Set.of(int.class, Integer.class, long.class, Long.class);

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

    /** Returns the command line. Tests may replace its streams. */
    protected final CommandLine build() {
        CommandLine root = new CommandLine(this);
        root.setCaseInsensitiveEnumValuesAllowed(true);
        // Arguments of a rank's main method may begin with @.
        root.setExpandAtFiles(false);
        root.setParameterExceptionHandler((e, args) -> badArguments(e, e.getCommandLine()));
        root.setExecutionExceptionHandler((e, command, result) -> failure(e, command));
        for (CommandLine command : root.getSubcommands().values()) {
            command.getCommandSpec().usageMessage().showDefaultValues(true);
            configure(command.getCommandSpec(), command.getCommandSpec());
            label(command.getCommandSpec());
        }
        root.getSubcommands().get("launch").setStopAtPositional(true);
        return root;
    }

    /** Configures rank options among the mixins of a spec, and among the mixins of these mixins. */
    private static void configure(CommandSpec spec, CommandSpec command) {
        for (CommandSpec mixin : spec.mixins().values()) {
            if (mixin.userObject() instanceof RankOptions options) {
                options.configure(command);
            }
            configure(mixin, command);
        }
    }

    /** Labels the values of whole numbers without a label: N, or SECONDS of a timeout. */
    private static void label(CommandSpec command) {
        for (OptionSpec option : List.copyOf(command.options())) {
            if (option.paramLabel().startsWith("<") && WHOLE.contains(option.auxiliaryTypes()[0])) {
                boolean isTimeout = option.longestName().endsWith("-timeout");
                command.remove(option);
                command.addOption(
                        option.toBuilder().paramLabel(isTimeout ? "SECONDS" : "N").build());
            }
        }
    }

    /** Runs a command and ends the JVM with its exit code. */
    protected final void runAndExit(String... args) {
        // Log4j, which the program may bring, reads it at the first log line.
        if (System.getProperty("log4j2.configurationFile") == null) {
            System.setProperty(
                    "log4j2.configurationFile",
                    "classpath:org/djlx/collectives/launch/cli/log4j2.xml");
        }
        int code = build().execute(args);
        // PrintStream throws no write errors.
        if (System.out.checkError()) {
            code = outputFailed(code);
        }
        System.exit(code);
    }

    /** Returns the exit code of a command whose output could not be written. */
    private static int outputFailed(int code) {
        try {
            if (Files.readSymbolicLink(STDOUT).toString().startsWith("pipe:")) {
                return SIGPIPE; // For example, head has read enough.
            }
        } catch (IOException | UnsupportedOperationException e) {
            // Not Linux.
        }
        if (code == 0) {
            System.err.println("error: cannot write to stdout");
        }
        return Math.max(1, code);
    }

    private static int badArguments(Exception e, CommandLine command) {
        PrintWriter err = command.getErr();
        err.println("error: " + text(e));
        if (!(e instanceof ParameterException parameter)
                || !UnmatchedArgumentException.printSuggestions(parameter, err)) {
            String example = e instanceof MissingParameterException ? example(command) : "";
            err.println("Try: " + example + command.getCommandSpec().qualifiedName() + " --help");
        }
        return command.getCommandSpec().exitCodeOnInvalidInput();
    }

    private static String example(CommandLine command) {
        return Stream.of(command.getCommandSpec().usageMessage().description())
                .filter(line -> line.startsWith(EXAMPLE))
                .map(line -> line.substring(EXAMPLE.length()) + ", or ")
                .findFirst()
                .orElse("");
    }

    private static String missing(MissingParameterException e) {
        if (e.getMissing().isEmpty() || !e.getMissing().stream().allMatch(ArgSpec::required)) {
            return e.getMessage(); // For example, the value of an option is missing.
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
                reason = "a file of that name exists; a folder is needed";
            }
            return file.getFile() + ": " + reason;
        }
        return e.getMessage() == null ? e.toString() : e.getMessage();
    }

    private int failure(Exception e, CommandLine command) {
        if (e instanceof UsageException) {
            return badArguments(e, command);
        }
        if (e instanceof OutputClosedException) {
            return 0; // runAndExit finds out why.
        }
        PrintWriter err = command.getErr();
        if (verbose) {
            e.printStackTrace(err);
        } else {
            err.println("error: " + text(e));
            err.println("(--verbose shows the stack trace)");
        }
        boolean missingFile = e instanceof NoSuchFileException;
        return missingFile
                ? command.getCommandSpec().exitCodeOnInvalidInput()
                : command.getCommandSpec().exitCodeOnExecutionException();
    }
}
