// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.host;

import ai.djl.engine.EngineException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Optional;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.nativeops.host.NativeMemory;
import org.djlx.nativeops.host.SharedMemory;

/**
 * One rank's mapping of the host memory that the ranks of a group share. It starts with a {@link
 * ControlBlock}. Ranks that are threads of one JVM have their own mappings, like processes. The
 * memory has no name in a file system, so nothing is left behind, however a process ends.
 */
public final class SharedSegment implements AutoCloseable {

    private static final Pattern OWNER = Pattern.compile("^/proc/(\\d+)/");

    private final SharedMemory shared;
    private final ControlBlock control;
    private final int rank;

    private SharedSegment(SharedMemory shared, ControlBlock control, int rank) {
        this.shared = shared;
        this.control = control;
        this.rank = rank;
    }

    /**
     * Creates the segment on rank 0 and maps it on the other ranks. Returns when all ranks have
     * mapped it and are {@linkplain ControlBlock.State#ACTIVE active}. After that, a waiting rank
     * notices if another rank dies or closes the segment.
     *
     * @param byteSize at least the size of a control block
     * @param configuration lines that must be the same on all ranks
     * @throws CollectiveException on all ranks, if a rank fails or the configurations differ
     */
    public static SharedSegment map(
            GroupContext context, long byteSize, List<String> configuration) {
        String here = "host " + Liveness.HOST + "\n" + String.join("\n", configuration);
        SharedMemory shared = null;
        SharedSegment segment = null;
        String path = "";
        String problem = "";
        try {
            if (context.rank() == 0) {
                shared = SharedMemory.create(tag(context.name()), byteSize);
                path = shared.path();
            }
        } catch (EngineException e) {
            problem = e.getMessage().replace('\n', ' ');
        }
        try {
            List<String> all = exchange(context, "segment", problem + "\n" + path + "\n" + here);
            checkSame(context, all);
            if (context.rank() != 0) {
                String created = all.get(0).split("\n")[1];
                try {
                    // Rejects any other path, because the store is not trusted.
                    shared = SharedMemory.open(created, byteSize);
                } catch (EngineException e) {
                    problem = death(created).orElse(e.getMessage());
                }
            }
            if (shared != null) {
                ControlBlock control = new ControlBlock(shared.memory(), context.worldSize());
                segment = new SharedSegment(shared, control, context.rank());
                segment.enter();
            }
            checkNone(context, exchange(context, "mapped", problem));
        } catch (RuntimeException | Error e) {
            if (segment != null) {
                segment.close();
            } else if (shared != null) {
                shared.close();
            }
            throw e;
        }
        shared.seal();
        return segment;
    }

    private void enter() {
        long pid = ProcessHandle.current().pid();
        control.setActive(rank, pid, Liveness.startTime(pid));
    }

    /** Describes the death of the process that created the memory, if it has died. */
    private static Optional<String> death(String path) {
        Matcher pid = OWNER.matcher(path);
        try {
            return pid.find() && Liveness.startTime(Long.parseLong(pid.group(1))) < 0
                    ? Optional.of(GroupErrors.died(0, Long.parseLong(pid.group(1))))
                    : Optional.empty();
        } catch (NumberFormatException | UncheckedIOException e) {
            return Optional.empty();
        }
    }

    /** Returns the name that tools show for the memory; the system allows 249 bytes. */
    private static String tag(String group) {
        return "djlx-" + group.substring(0, Math.min(group.length(), 60));
    }

    private static List<String> exchange(GroupContext context, String key, String value) {
        return context.exchange(key, value.getBytes(StandardCharsets.UTF_8)).stream()
                .map(bytes -> new String(bytes, StandardCharsets.UTF_8))
                .toList();
    }

    private static void checkSame(GroupContext context, List<String> all) {
        checkNone(context, all.stream().map(text -> text.split("\n")[0]).toList());
        String[] first = all.get(0).split("\n");
        for (int rank = 0; rank < all.size(); rank++) {
            String[] other = all.get(rank).split("\n");
            if (other.length != first.length || first.length < 3) {
                throw new CollectiveException(
                        ("the ranks of group '%s' cannot share memory: rank %s uses another version"
                                        + " of this library; use the same version on all ranks")
                                .formatted(context.name(), rank));
            }
            for (int i = 2; i < first.length; i++) {
                if (!first[i].equals(other[i])) {
                    throw new CollectiveException(
                            ("the ranks of group '%s' cannot share memory: rank 0 has %s, rank %s"
                                 + " has %s; shm needs one host and the same options on all ranks;"
                                 + " for CPUs of several hosts use backend mpi, under mpirun")
                                    .formatted(context.name(), first[i], rank, other[i]));
                }
            }
        }
    }

    private static void checkNone(GroupContext context, List<String> problems) {
        for (int rank = 0; rank < problems.size(); rank++) {
            if (!problems.get(rank).isEmpty()) {
                throw new CollectiveException(
                        "the ranks of group '%s' cannot share memory: rank %s: %s"
                                .formatted(context.name(), rank, problems.get(rank)));
            }
        }
    }

    /** Returns the memory, initially zero; valid until this segment is closed. */
    public NativeMemory memory() {
        return shared.memory();
    }

    /** Returns the control block at the start of the memory; valid until this segment is closed. */
    public ControlBlock control() {
        return control;
    }

    /** Unmaps the memory, after marking this rank as LEFT unless it is LEFT or FAILED already. */
    @Override
    public void close() {
        if (control.state(rank) == ControlBlock.State.ACTIVE) {
            control.setLeft(rank);
        }
        shared.close();
    }
}
