// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.launch;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;

/**
 * Sessions of the kernel: a process and its descendants stay in one session, even after their
 * parents have ended. Each rank has its own session. Only a process that requests a new session
 * leaves it, as daemons do.
 *
 * <p>A session ends with its launcher. A shell in the session, the guard, reads from a pipe; the
 * launcher holds the write end. The kernel closes the write end when the launcher ends, even by
 * SIGKILL; the launcher's JVM closes it when the rank ends. The guard then kills all processes of
 * the session. The guard does not depend on the rank, which may end at the same time. The launcher
 * writes an empty line from time to time ({@link #isGuarded}), which fails if the guard is gone.
 */
final class Sessions {

    private static final Path PROC = Path.of("/proc");
    private static final long LIMIT_NANOS = 5_000_000_000L;

    // The fields of /proc/PID/stat after the name are: state, parent, group, session.
    private static final int SESSION = 3;

    // Starts the guard and becomes the rank, so $$ is the id of the rank's process and session.
    // Uses only shell builtins, except for sleep.
    private static final String GUARD =
            """
            exec 3<&0 </dev/null
            {
              while read -r line; do :; done
              read -r self line </proc/self/stat
              left=1
              while [ "$left" ]; do
                left=
                for stat in /proc/[0-9]*/stat; do
                  read -r line <"$stat" || continue
                  pid=${line%% *}
                  set -- ${line##*) }
                  if [ "$4" = $$ ] && [ "$1" != Z ] && [ "$pid" != "$self" ]; then
                    kill -KILL "$pid"
                    left=1
                  fi
                done
                [ -z "$left" ] || sleep 0.1
              done
            } <&3 3<&- >/dev/null 2>&1 &
            exec "$@" 3<&-
            """;

    private Sessions() {}

    /**
     * Returns a command that runs {@code command} as the leader of a new session, with an empty
     * stdin. The session ends when the returned command's stdin closes.
     */
    static List<String> command(List<String> command) {
        return Stream.concat(Stream.of("setsid", "sh", "-c", GUARD, "sh"), command.stream())
                .toList();
    }

    /**
     * Returns whether the guard of the process of {@link #command} still reads from its pipe; true
     * also if the rank has ended, which ends its guard.
     */
    static boolean isGuarded(Process leader) throws InterruptedException {
        try {
            leader.getOutputStream().write('\n');
            leader.getOutputStream().flush();
            return true;
        } catch (IOException e) {
            // The whole session was killed, and the rank with it: the rank has failed.
            return leader.waitFor(1, TimeUnit.SECONDS);
        }
    }

    /**
     * Kills all processes of a session except this process, and waits up to 5 s until they have
     * ended. The session's leader, which has its id, may have ended.
     */
    static void end(long id) throws InterruptedException {
        long start = System.nanoTime();
        List<ProcessHandle> left = members(id);
        while (!left.isEmpty() && System.nanoTime() - start < LIMIT_NANOS) {
            left.forEach(ProcessHandle::destroyForcibly);
            Thread.sleep(1);
            // Includes processes that were started during the loop.
            left = members(id);
        }
    }

    private static List<ProcessHandle> members(long id) {
        List<ProcessHandle> members = new ArrayList<>();
        try (DirectoryStream<Path> processes = Files.newDirectoryStream(PROC, "[0-9]*")) {
            for (Path process : processes) {
                long pid = Long.parseLong(process.getFileName().toString());
                if (pid != ProcessHandle.current().pid() && isMember(process, id)) {
                    ProcessHandle.of(pid).ifPresent(members::add);
                }
            }
        } catch (IOException e) {
            throw new UncheckedIOException("cannot look for processes in " + PROC, e);
        }
        return members;
    }

    private static boolean isMember(Path process, long id) {
        String stat;
        try {
            stat = Files.readString(process.resolve("stat"), StandardCharsets.ISO_8859_1);
        } catch (IOException e) {
            return false; // The process ended after the listing.
        }
        // The name, in brackets, may contain any character.
        String[] fields = stat.substring(stat.lastIndexOf(')') + 1).strip().split(" ");
        boolean ended = fields.length <= SESSION || fields[0].equals("Z");
        return !ended && Long.parseLong(fields[SESSION]) == id;
    }
}
