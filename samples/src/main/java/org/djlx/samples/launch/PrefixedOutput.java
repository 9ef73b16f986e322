/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.launch;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.PrintStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;

/**
 * Passes on what a rank writes, line by line, so that lines of different ranks never mix. Works on
 * bytes: what a rank writes need not be text in this JVM's encoding.
 */
final class PrefixedOutput implements Runnable {

    private final byte[] prefix;
    private final InputStream in;
    private final PrintStream out;
    private final Runnable onFailure;

    private PrefixedOutput(int rank, InputStream in, PrintStream out, Runnable onFailure) {
        this.prefix = ("[" + rank + "] ").getBytes(StandardCharsets.US_ASCII);
        this.in = in;
        this.out = out;
        this.onFailure = onFailure;
    }

    /**
     * Starts a thread that runs until the end of the input, whether or not it can be passed on.
     *
     * @param onFailure what is called after each line that cannot
     */
    static Thread start(int rank, InputStream in, PrintStream out, Runnable onFailure) {
        PrefixedOutput output = new PrefixedOutput(rank, in, out, onFailure);
        Thread thread = new Thread(output, "output-of-rank-" + rank);
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    @Override
    public void run() {
        ByteArrayOutputStream line = new ByteArrayOutputStream();
        try (in) {
            for (int b = in.read(); b >= 0; b = in.read()) {
                if (b == '\n') {
                    print(line);
                } else {
                    line.write(b);
                }
            }
            if (line.size() > 0) {
                print(line);
            }
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private void print(ByteArrayOutputStream line) {
        synchronized (out) {
            out.write(prefix, 0, prefix.length);
            out.write(line.toByteArray(), 0, line.size());
            out.write('\n');
            if (out.checkError()) {
                onFailure.run();
            }
        }
        line.reset();
    }
}
