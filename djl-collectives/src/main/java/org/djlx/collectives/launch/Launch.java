// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.launch;

import picocli.CommandLine;
import picocli.CommandLine.ParameterException;

/**
 * Starts the ranks of a job on this host, one process each, as torchrun does: {@code java -cp
 * app.jar org.djlx.collectives.launch.Launch --nproc-per-node 8 com.example.Train}. The option
 * {@code --help} lists all; {@link LaunchCommand} has them.
 *
 * <p>Needs picocli on the class path, which is an optional dependency.
 *
 * <p>Exit codes: that of {@link Launcher#launch}, 1 for an error of the launcher, 2 for wrong
 * arguments.
 */
public final class Launch {

    private Launch() {}

    /**
     * Runs the command.
     *
     * @param args the options, the main class of the ranks, and its arguments
     */
    public static void main(String[] args) {
        int code;
        try {
            code = Command.run(args);
        } catch (NoClassDefFoundError e) {
            System.err.println("error: " + e + "; add info.picocli:picocli to the class path");
            code = 2;
        }
        System.exit(code);
    }

    /** Loaded after main has begun, so that a missing picocli is reported. */
    private static final class Command {

        static int run(String[] args) {
            CommandLine command = new CommandLine(new LaunchCommand());
            command.getCommandSpec().mixinStandardHelpOptions(true);
            return command.setStopAtPositional(true)
                    .setParameterExceptionHandler(
                            (e, all) -> error(e, command.getCommandSpec().exitCodeOnInvalidInput()))
                    .setExecutionExceptionHandler((e, all, result) -> error(e, 1))
                    .execute(args);
        }

        private static int error(Exception e, int code) {
            String hint = e instanceof ParameterException ? "; --help lists the options" : "";
            System.err.println("error: " + e.getMessage() + hint);
            return code;
        }
    }
}
