// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.launch.cli;

/** Stdout takes no more output. It ends the command, and {@link RootCommand} without a message. */
final class OutputClosedException extends RuntimeException {

    private static final long serialVersionUID = 1L;

    OutputClosedException() {
        super("cannot write to stdout");
    }
}
