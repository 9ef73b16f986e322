// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import java.io.StringWriter;
import org.djlx.collectives.launch.cli.CommandRun;

/** Runs commands of {@link Main} and keeps their output. */
abstract class CommandTest {

    protected final StringWriter out = new StringWriter();
    protected final StringWriter err = new StringWriter();

    /** Runs a command; returns its exit code. */
    protected final int run(Object... args) {
        return CommandRun.run(Commands.commandLine(), out, err, args);
    }

    /** Runs a command that ends with an exit code; returns what it writes to stdout and stderr. */
    protected static String output(int code, Object... args) {
        return CommandRun.output(Commands.commandLine(), code, args);
    }
}
