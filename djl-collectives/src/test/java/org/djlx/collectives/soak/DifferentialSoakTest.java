// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.soak;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ShmOptions;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/**
 * Random programs on {@code shm}: all operations, element types, shapes, strides and groups, with
 * ranks that are threads and with ranks that are processes, against plain Java.
 */
@Tag("soak")
class DifferentialSoakTest {

    private static final int TIMES = 3;
    private static final int ROUND_SECONDS = 20; // Then other processes, of another number.

    /** Two jobs at once, each with groups of its own. */
    @Test
    void jobsOfThreadsGiveTheModelsResults() throws InterruptedException {
        Soak.run(
                "differential, threads",
                soak -> {
                    while (soak.nextRound()) {
                        long seed = soak.roundSeed();
                        Throwable[] failure = {null};
                        Thread other =
                                new Thread(
                                        () -> {
                                            try {
                                                round(soak, seed + 1);
                                            } catch (Throwable e) {
                                                failure[0] = e;
                                            }
                                        },
                                        "the other job");
                        other.start();
                        try {
                            round(soak, seed);
                        } finally {
                            other.join();
                        }
                        if (failure[0] != null) {
                            throw new AssertionError("the other job: " + failure[0], failure[0]);
                        }
                    }
                    soak.requireAll(RandomProgram.kinds().keySet());
                });
    }

    @Test
    void jobsOfProcessesGiveTheModelsResults() throws InterruptedException {
        Soak.run(
                "differential, processes",
                soak -> {
                    while (soak.nextRound()) {
                        Random random = new Random(soak.roundSeed());
                        int worldSize = 2 + random.nextInt(3);
                        try (ProgramProcesses ranks =
                                new ProgramProcesses(worldSize, random.nextLong())) {
                            for (int i = 0; i < ROUND_SECONDS && !soak.isOver(); i++) {
                                Thread.sleep(1000);
                            }
                            soak.add("calls", ranks.stop());
                        }
                    }
                    soak.requireAll(List.of("calls"));
                });
    }

    private static void round(Soak soak, long seed) {
        Random random = new Random(seed);
        int worldSize = 2 + random.nextInt(4);
        List<ProcessGroup> groups =
                ProcessGroups.local("shm", worldSize, options(random, Duration.ofMinutes(2)));
        try {
            List<Map<String, Long>> counts =
                    ProcessGroups.run(groups, group -> new RandomProgram(group, seed).run(TIMES));
            counts.forEach(one -> one.forEach(soak::add));
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    /** Small staging halves, so that arrays of moderate size take several steps. */
    static ShmOptions options(Random random, Duration timeout) {
        return ShmOptions.builder()
                .optTimeout(timeout)
                .optChunkSize(4096L << random.nextInt(6))
                .optBufferSize(4096L << random.nextInt(4))
                .build();
    }
}
