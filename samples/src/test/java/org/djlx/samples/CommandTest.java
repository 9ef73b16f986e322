// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.io.PrintWriter;
import java.io.StringWriter;
import java.util.stream.Stream;
import picocli.CommandLine;

/** Runs commands of {@code samples/run.sh} and keeps their output. */
public abstract class CommandTest {

    protected final StringWriter out = new StringWriter();
    protected final StringWriter err = new StringWriter();

    /** Runs a command; returns its exit code. */
    protected final int run(Object... args) {
        CommandLine root = Main.commandLine();
        root.setOut(new PrintWriter(out, true)).setErr(new PrintWriter(err, true));
        return root.execute(words(args));
    }

    /** Runs a command that ends with an exit code; returns what it writes to stdout and stderr. */
    protected static String output(int code, Object... args) {
        StringWriter both = new StringWriter();
        CommandLine root = Main.commandLine();
        root.setOut(new PrintWriter(both, true)).setErr(new PrintWriter(both, true));
        assertEquals(code, root.execute(words(args)), both::toString);
        return both.toString();
    }

    private static String[] words(Object... args) {
        return Stream.of(args).map(Object::toString).toArray(String[]::new);
    }
}
