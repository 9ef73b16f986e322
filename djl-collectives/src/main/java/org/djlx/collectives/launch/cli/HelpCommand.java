// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.launch.cli;

import picocli.CommandLine;
import picocli.CommandLine.Command;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.Parameters;
import picocli.CommandLine.Spec;

/**
 * {@code help}: the help of a command. picocli's own help command does not work with the option
 * {@code --help} that all commands have.
 */
@Command(name = "help", description = "Shows the help of a command.")
public final class HelpCommand implements Runnable {

    @Spec private CommandSpec spec;

    @Parameters(arity = "0..1", paramLabel = "COMMAND", description = "The command.")
    private String command;

    @Override
    public void run() {
        CommandLine root = spec.parent().commandLine();
        CommandLine wanted = command == null ? root : root.getSubcommands().get(command);
        if (wanted == null) {
            throw new ParameterException(root, "there is no command '" + command + "'");
        }
        wanted.usage(root.getOut());
    }
}
