// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.launch;

import java.io.PrintStream;
import java.util.List;
import org.djlx.nativeops.host.Required;

/**
 * The program {@code launch}: runs a main class in N processes, as torchrun does. {@link
 * LaunchCommand} describes its options.
 */
public final class Launch {

    private Launch() {}

    /** Runs the command, and ends this process with its exit code. */
    public static void main(String[] args) {
        requirePicocli();
        System.exit(run(System.out, System.err, List.of(args)));
    }

    /**
     * Ends this process with an error that names picocli's artifact, if it is not on the class
     * path. For main classes that load the classes of a command line only afterwards.
     */
    public static void requirePicocli() {
        try {
            Class.forName("picocli.CommandLine");
        } catch (ClassNotFoundException e) {
            System.err.println(
                    "error: command lines need picocli, which is not on the class path: add"
                            + " info.picocli:picocli:4.7.7");
            System.exit(1);
        }
    }

    /**
     * Runs the command in this JVM. If the thread is interrupted, or the JVM shuts down, the ranks
     * are stopped. Each call is a separate job. Needs picocli on the class path.
     *
     * @param out gets the ranks' stdout
     * @param err gets their stderr, and the launcher's messages
     * @param args the options, the main class of the ranks, and its arguments
     * @return 0 if every rank returned 0; otherwise the exit code of the rank, here or on another
     *     node, that failed first since the last restart, with 128 plus its number for a signal;
     *     141 (SIGPIPE) if {@code out} was closed; 2 if an option is wrong; 1 for other errors
     */
    public static int run(PrintStream out, PrintStream err, List<String> args) {
        LaunchCommand command = new LaunchCommand();
        command.out = Required.argument("run: out", out);
        command.err = Required.argument("run: err", err);
        return command.execute(Required.argument("run: args", args));
    }
}
