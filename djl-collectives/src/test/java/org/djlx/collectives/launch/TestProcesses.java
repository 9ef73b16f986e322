// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.launch;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.Collection;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;

/** Waits for processes to end. */
final class TestProcesses {

    private static final Pattern PID = Pattern.compile("\\[\\d+] pid (\\d+)");

    private TestProcesses() {}

    /** Returns the process ids in the output of {@link RankProbe}. */
    static Set<Long> pids(Collection<String> lines) {
        return lines.stream()
                .map(PID::matcher)
                .filter(Matcher::matches)
                .map(line -> Long.valueOf(line.group(1)))
                .collect(Collectors.toSet());
    }

    /** Waits until the processes are gone; the test's own timeout is the limit. */
    static void assertGone(Collection<Long> pids) throws Exception {
        for (long pid : pids) {
            while (isRunning(pid)) {
                Thread.sleep(20);
            }
        }
    }

    /** Waits until no process has an argument; the test's own timeout is the limit. */
    static void assertNoneHas(String argument) throws Exception {
        boolean found = true;
        while (found) {
            found = false;
            try (DirectoryStream<Path> processes =
                    Files.newDirectoryStream(Path.of("/proc"), "[0-9]*")) {
                for (Path process : processes) {
                    found |= commandLine(process).contains(argument);
                }
            }
            Thread.sleep(20);
        }
    }

    private static String commandLine(Path process) {
        try {
            return Files.readString(process.resolve("cmdline"), StandardCharsets.ISO_8859_1);
        } catch (IOException e) {
            return ""; // The process has ended since it was listed.
        }
    }

    /** Zombies count as ended: in a container without an init process nothing reaps them. */
    static boolean isRunning(long pid) throws IOException {
        try {
            String stat = Files.readString(Path.of("/proc", Long.toString(pid), "stat"));
            return stat.charAt(stat.lastIndexOf(')') + 2) != 'Z';
        } catch (NoSuchFileException e) {
            return false;
        } catch (IOException e) {
            // The process ended between open and read: ESRCH, for which there is no exception type.
            if (Files.notExists(Path.of("/proc", Long.toString(pid)))) {
                return false;
            }
            throw e;
        }
    }
}
