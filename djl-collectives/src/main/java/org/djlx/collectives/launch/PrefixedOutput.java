// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.launch;

import static java.nio.file.StandardOpenOption.APPEND;
import static java.nio.file.StandardOpenOption.CREATE;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;

/**
 * Prints a rank's output line by line, with one write per line, so lines of several ranks never
 * mix. Works on bytes, because the output may have any encoding.
 *
 * <p>A carriage return ends a line, too, so each state of a progress bar becomes a line. A line
 * longer than {@link #MAX_LINE} is cut into pieces.
 */
final class PrefixedOutput implements Runnable {

    /** The longest line in bytes, which bounds the memory for a rank's output. */
    static final int MAX_LINE = 64 << 10;

    /** After all writers have ended, a stream that is silent for this long counts as empty. */
    private static final long QUIET_NANOS = 1_000_000_000L;

    private final byte[] prefix;
    private final InputStream in;
    private final PrintStream out;
    private final OutputStream log; // gets the bytes as they are
    private final Path logFile; // null for none
    private final Runnable onFailure;
    private final Thread thread;
    private final ByteArrayOutputStream line = new ByteArrayOutputStream(); // guarded by this
    private boolean returned; // guarded by this: the last byte was a carriage return
    private boolean ended; // guarded by this: no more output is printed
    private volatile long readingSince; // start of the pending read in nanoseconds; 0 between reads

    private PrefixedOutput(
            int rank,
            InputStream in,
            PrintStream out,
            OutputStream log,
            Path logFile,
            Runnable onFailure) {
        this.prefix = ("[" + rank + "] ").getBytes(StandardCharsets.US_ASCII);
        this.in = in;
        this.out = out;
        this.log = log;
        this.logFile = logFile;
        this.onFailure = onFailure;
        thread = new Thread(this, "output-of-rank-" + rank);
        thread.setDaemon(true);
    }

    /**
     * Starts a thread that reads to the end of the input, even if printing fails; then {@code
     * onFailure} is called after each line. A copy is appended to the log, unless null. If it
     * cannot be written, the output is printed all the same.
     */
    static PrefixedOutput start(
            int rank, InputStream in, PrintStream out, Path log, Runnable onFailure)
            throws IOException {
        OutputStream copy =
                log == null
                        ? OutputStream.nullOutputStream()
                        : Files.newOutputStream(log, CREATE, APPEND);
        PrefixedOutput output = new PrefixedOutput(rank, in, out, copy, log, onFailure);
        output.thread.start();
        return output;
    }

    /**
     * Waits until all output is printed. All ranks must have ended. A process that left its rank's
     * session may still hold a stream open; such a stream is abandoned once it is empty.
     */
    static void finish(List<PrefixedOutput> outputs) throws InterruptedException {
        long start = System.nanoTime();
        for (PrefixedOutput output : outputs) {
            while (output.thread.isAlive() && !output.isQuiet(start)) {
                output.thread.join(20);
            }
            output.end();
        }
    }

    private boolean isQuiet(long start) {
        long since = readingSince;
        long now = System.nanoTime();
        return since != 0 && now - since > QUIET_NANOS && now - start > QUIET_NANOS;
    }

    @Override
    public void run() {
        byte[] bytes = new byte[8 << 10];
        OutputStream copy = log;
        try (in;
                log) {
            for (int count = read(bytes); count >= 0 && pass(bytes, count); count = read(bytes)) {
                try {
                    copy.write(bytes, 0, count);
                } catch (IOException e) { // The disk is full.
                    say("cannot write " + logFile + ", which ends here: " + e.getMessage());
                    copy = OutputStream.nullOutputStream();
                }
            }
        } catch (IOException e) {
            say("cannot read the output of a rank: " + e.getMessage());
        }
    }

    private void say(String message) {
        print(
                (new String(prefix, StandardCharsets.US_ASCII) + message)
                        .getBytes(StandardCharsets.UTF_8));
    }

    private int read(byte[] bytes) throws IOException {
        readingSince = System.nanoTime() | 1;
        int count = in.read(bytes, 0, bytes.length);
        readingSince = 0;
        return count;
    }

    /** Prints the lines in some bytes. Returns false after {@link #end}. */
    private synchronized boolean pass(byte[] bytes, int count) {
        for (int i = 0; i < count && !ended; i++) {
            byte b = bytes[i];
            if (b == '\n') {
                // A line feed after a carriage return does not end another line.
                if (!returned || line.size() > 0) {
                    printLine();
                }
            } else if (b == '\r') {
                if (line.size() > 0) {
                    printLine();
                    returned = true;
                }
                continue;
            } else {
                line.write(b);
                if (line.size() == MAX_LINE) {
                    printLine();
                }
            }
            returned = false;
        }
        return !ended;
    }

    /** Prints an incomplete last line, and drops later output. */
    private synchronized void end() {
        if (!ended && line.size() > 0) {
            printLine();
        }
        ended = true;
    }

    private void printLine() {
        byte[] text = new byte[prefix.length + line.size()];
        System.arraycopy(prefix, 0, text, 0, prefix.length);
        System.arraycopy(line.toByteArray(), 0, text, prefix.length, line.size());
        line.reset();
        print(text);
    }

    private void print(byte[] text) {
        if (!print(out, text)) {
            onFailure.run();
        }
    }

    /**
     * Writes a line as a whole, not mixed with lines of other threads. Returns false if that fails.
     */
    static boolean print(PrintStream out, byte[] text) {
        byte[] whole = Arrays.copyOf(text, text.length + 1);
        whole[text.length] = '\n';
        synchronized (out) {
            out.write(whole, 0, whole.length);
            return !out.checkError();
        }
    }
}
