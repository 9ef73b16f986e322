// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.launch.cli;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.io.PrintWriter;
import java.io.StringWriter;
import java.util.stream.Stream;
import picocli.CommandLine;

/** Runs commands of a program for tests, which keep their output. */
public final class CommandRun {

    private CommandRun() {}

    /** Runs a command with streams of its own; returns its exit code. */
    public static int run(CommandLine program, StringWriter out, StringWriter err, Object... args) {
        program.setOut(new PrintWriter(out, true)).setErr(new PrintWriter(err, true));
        return program.execute(Stream.of(args).map(Object::toString).toArray(String[]::new));
    }

    /** Runs a command that ends with an exit code; returns what it writes to stdout and stderr. */
    public static String output(CommandLine program, int code, Object... args) {
        StringWriter both = new StringWriter();
        assertEquals(code, run(program, both, both, args), both::toString);
        return both.toString();
    }
}
