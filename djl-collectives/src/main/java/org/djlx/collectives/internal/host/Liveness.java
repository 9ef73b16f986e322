/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.host;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.UUID;

/** Tells which host this is, and whether a process of it still runs, from proc(5). */
public final class Liveness {

    /**
     * Names this host, as long as it runs, and the namespace in which its process ids are valid;
     * has no spaces.
     */
    public static final String HOST = host();

    private Liveness() {}

    private static String host() {
        try {
            return Files.readString(Path.of("/proc/sys/kernel/random/boot_id")).strip()
                    + Files.readSymbolicLink(Path.of("/proc/self/ns/pid"));
        } catch (IOException e) {
            return UUID.randomUUID().toString(); // No other process is known to be here.
        }
    }

    /**
     * Returns when a process started, in clock ticks since the boot; with its id this names a
     * process even after the id has been used again.
     *
     * @param pid the process's id
     * @return the time, or -1 if the process has ended, a zombie included
     * @throws UncheckedIOException if that cannot be read, as when this process can open no more
     *     files
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
            // It may have ended before the file was opened or while it was read. To ask this takes
            // no descriptor, of which there may be none left.
            if (Files.notExists(process)) {
                return -1;
            }
            throw e;
        }
        // The second field is the command in parentheses and may itself hold some.
        String[] fields = stat.substring(stat.lastIndexOf(')') + 2).split(" ");
        char state = fields[0].charAt(0);
        return state == 'Z' || state == 'X' ? -1 : Long.parseLong(fields[19]);
    }

    /**
     * Tells whether a process still runs. If that cannot be read, it does as long as there is one
     * with its id.
     *
     * @param pid the process's id
     * @param startTime when it started, as {@link #startTime} told
     * @return whether it does
     */
    public static boolean isAlive(long pid, long startTime) {
        try {
            return readStartTime(pid) == startTime;
        } catch (IOException e) {
            return true;
        }
    }
}
