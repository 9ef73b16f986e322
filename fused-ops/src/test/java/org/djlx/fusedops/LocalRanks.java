// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import java.time.Duration;
import java.util.List;
import java.util.function.Consumer;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ShmOptions;

/** Runs code on ranks as threads, on new groups. */
final class LocalRanks {

    private LocalRanks() {}

    static void run(int worldSize, Consumer<ProcessGroup> body) {
        run(worldSize, 1 << 20, body);
    }

    static void run(int worldSize, long bufferSize, Consumer<ProcessGroup> body) {
        run(worldSize, bufferSize, Duration.ofSeconds(60), body);
    }

    static void run(int worldSize, long bufferSize, Duration timeout, Consumer<ProcessGroup> body) {
        run(worldSize, bufferSize, 0, timeout, body);
    }

    static void run(int worldSize, long bufferSize, long heapSize, Consumer<ProcessGroup> body) {
        run(worldSize, bufferSize, heapSize, Duration.ofSeconds(60), body);
    }

    private static void run(
            int worldSize,
            long bufferSize,
            long heapSize,
            Duration timeout,
            Consumer<ProcessGroup> body) {
        ShmOptions options =
                ShmOptions.builder()
                        .optTimeout(timeout)
                        .optChunkSize(64 << 10)
                        .optBufferSize(bufferSize)
                        .optHeapSize(heapSize)
                        .build();
        run(ProcessGroups.local("shm", worldSize, options), body);
    }

    /** Runs code on all ranks of a group, then destroys it. */
    static void run(List<ProcessGroup> groups, Consumer<ProcessGroup> body) {
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        body.accept(group);
                        return null;
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }
}
