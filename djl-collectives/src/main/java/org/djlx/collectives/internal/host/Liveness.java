/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.host;

import java.io.IOException;
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
     */
    public static long startTime(long pid) {
        try {
            String stat =
                    Files.readString(
                            Path.of("/proc/" + pid + "/stat"), StandardCharsets.ISO_8859_1);
            // The second field is the command in parentheses and may itself hold some.
            String[] fields = stat.substring(stat.lastIndexOf(')') + 2).split(" ");
            char state = fields[0].charAt(0);
            return state == 'Z' || state == 'X' ? -1 : Long.parseLong(fields[19]);
        } catch (IOException e) {
            return -1;
        }
    }

    /**
     * Tells whether a process still runs.
     *
     * @param pid the process's id
     * @param startTime when it started, as {@link #startTime} told
     * @return whether it does
     */
    public static boolean isAlive(long pid, long startTime) {
        return startTime(pid) == startTime;
    }
}
