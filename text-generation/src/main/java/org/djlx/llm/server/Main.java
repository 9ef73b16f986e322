// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import org.djlx.collectives.launch.Launch;

/** The program of {@code java -jar text-generation.jar}; {@link Commands} are its commands. */
public final class Main {

    private Main() {}

    /** Runs a command and ends the JVM with its exit code. */
    public static void main(String[] args) {
        Launch.requirePicocli();
        Commands.main(args);
    }
}
