// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.RankProcesses;
import org.djlx.collectives.ShmOptions;
import org.djlx.collectives.soak.Soak;
import org.djlx.fusedops.cost.Path;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/**
 * Random calls of the fused operators on {@code shm}: ranks as threads and as processes, buffers
 * that fit most shapes and buffers that fit few.
 */
@Tag("soak")
class FusedSoakTest {

    private static final List<String> KINDS =
            List.of(
                    "allGatherMatmul",
                    "matmulReduceScatter",
                    "allReduceRmsNorm",
                    "lowContentionAllGather",
                    "lowContentionReduceScatter");
    private static final int TIMES = 10;

    @Test
    void threads() throws InterruptedException {
        Soak.run(
                "fused operators, threads",
                soak -> {
                    try (UsageCounter usage = FusedOps.countUsage()) {
                        while (soak.nextRound()) {
                            Random random = new Random(soak.roundSeed());
                            int worldSize = 1 + random.nextInt(5);
                            ShmOptions options = options(random);
                            long seed = random.nextLong();
                            List<ProcessGroup> groups =
                                    ProcessGroups.local("shm", worldSize, options);
                            try {
                                List<Map<String, Long>> counts =
                                        ProcessGroups.run(
                                                groups,
                                                group ->
                                                        RandomOperators.ofAll(group, seed)
                                                                .run(TIMES));
                                counts.forEach(one -> one.forEach(soak::add));
                            } finally {
                                groups.forEach(ProcessGroup::destroy);
                            }
                        }
                        for (Path path : Path.values()) {
                            soak.add(path.toString(), usage.calls(path));
                        }
                    }
                    soak.requireAll(KINDS);
                });
    }

    @Test
    void processes() throws InterruptedException {
        Soak.run(
                "fused operators, processes",
                soak -> {
                    while (soak.nextRound()) {
                        Random random = new Random(soak.roundSeed());
                        int worldSize = 2 + random.nextInt(3);
                        try (RankProcesses ranks =
                                new RankProcesses(
                                        worldSize, FusedSoakMain.class, "" + random.nextLong())) {
                            ranks.awaitSuccess();
                        }
                        soak.add("calls", (long) worldSize * FusedSoakMain.TIMES * KINDS.size());
                    }
                });
    }

    static ShmOptions options(Random random) {
        return ShmOptions.builder()
                .optTimeout(Duration.ofMinutes(2))
                .optChunkSize(4096L << random.nextInt(5))
                .optBufferSize(random.nextInt(4) == 0 ? 4096 : 1 << 20)
                .optHeapSize(1 << 22)
                .build();
    }
}
