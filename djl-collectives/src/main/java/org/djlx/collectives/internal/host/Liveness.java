// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.host;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.UUID;

/** Identifies this host, and checks whether a process on it is alive, by proc(5). */
public final class Liveness {

    /** Identifies this boot of this host and the PID namespace; contains no spaces. */
    public static final String HOST = host();

    /** The name of this host, for messages; contains no spaces. */
    public static final String HOST_NAME = hostName();

    private static final int START_TIME = 19; // the field, counted from the state

    private Liveness() {}

    private static String hostName() {
        try {
            return Files.readString(Path.of("/proc/sys/kernel/hostname")).strip().replace(' ', '-');
        } catch (IOException e) {
            return "unnamed";
        }
    }

    private static String host() {
        try {
            return Files.readString(Path.of("/proc/sys/kernel/random/boot_id")).strip()
                    + Files.readSymbolicLink(Path.of("/proc/self/ns/pid"));
        } catch (IOException e) {
            return UUID.randomUUID().toString(); // Unknown: equal to no other process's value.
        }
    }

    /**
     * Returns when a process started, in clock ticks since boot; -1 if the process has ended or is
     * a zombie. Together with the process id this identifies a process, even if the id is reused.
     *
     * @throws UncheckedIOException if the process state cannot be read, for example for lack of
     *     file descriptors
     */
    public static long startTime(long pid) {
        try {
            return readStartTime(pid);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private static long readStartTime(long pid) throws IOException {
        Path process = Path.of("/proc/" + pid);
        String stat;
        try {
            stat = Files.readString(process.resolve("stat"), StandardCharsets.ISO_8859_1);
        } catch (IOException e) {
            // The process may have ended. This check needs no file descriptor.
            if (Files.notExists(process)) {
                return -1;
            }
            throw e;
        }
        return startTime(stat);
    }

    /**
     * Returns the start time in the text of a {@code stat} file; -1 for a zombie.
     *
     * @throws IOException if the text is incomplete, as while the process ends
     */
    static long startTime(String stat) throws IOException {
        // The second field is the command in parentheses, which may itself contain parentheses.
        String[] fields = stat.substring(stat.lastIndexOf(')') + 1).strip().split(" ");
        if (fields[0].equals("Z") || fields[0].equals("X")) {
            return -1;
        }
        try {
            return Long.parseLong(fields[START_TIME]);
        } catch (IndexOutOfBoundsException | NumberFormatException e) {
            throw new IOException("the state of a process is incomplete: '" + stat + "'", e);
        }
    }

    /**
     * Returns whether a process with a {@link #startTime} is alive. If it cannot be determined,
     * returns true.
     */
    public static boolean isAlive(long pid, long startTime) {
        try {
            return readStartTime(pid) == startTime;
        } catch (IOException e) {
            return true;
        }
    }
}
