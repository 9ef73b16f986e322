// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.launch.cli;

import static org.djlx.collectives.launch.cli.UsageException.refuseIf;

import java.io.IOException;
import java.io.PrintWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.Callable;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Spec;

/** A command. It prints to the streams of its command line, which tests may replace. */
public abstract class CliCommand implements Callable<Integer> {

    @Spec private CommandSpec spec;

    /** Returns the picocli model of this command. */
    protected final CommandSpec spec() {
        return spec;
    }

    /** Returns stdout. */
    protected final PrintWriter out() {
        return spec.commandLine().getOut();
    }

    /** Returns stderr. */
    protected final PrintWriter err() {
        return spec.commandLine().getErr();
    }

    /**
     * Prints to stdout, and flushes; throws OutputClosedException if that fails, such as when
     * {@code head} has read enough.
     */
    protected final void print(String format, Object... values) {
        if (out().printf(format, values).checkError()) {
            throw new OutputClosedException();
        }
    }

    /** Reads the file of an option. */
    protected static byte[] readFile(Path file) throws IOException {
        refuseIf(
                !Files.isRegularFile(file) || !Files.isReadable(file),
                "cannot read the text file %s".formatted(file.toAbsolutePath()));
        return Files.readAllBytes(file);
    }
}
