/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops;

import java.util.List;
import java.util.Random;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.internal.cudap2p.CudaP2pVictimMain;
import org.djlx.collectives.internal.cudap2p.P2pRanks;
import org.djlx.collectives.internal.cudap2p.Survivors;
import org.djlx.collectives.soak.RandomProgram;
import org.djlx.collectives.soak.Soak;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/**
 * On GPUs: random collectives and fused operators against plain Java and DJL in float64, with ranks
 * that are threads; and ranks that are processes, of which one is killed at a random moment.
 */
@Tag("gpu")
@Tag("soak")
class GpuSoakTest {

    private static final int TIMES = 10;

    private int worldSize;

    @BeforeEach
    void requireGpus() {
        worldSize = P2pRanks.require();
    }

    @Test
    void randomShapes() throws InterruptedException {
        P2pRanks.requireNccl(); // Some of the calls take its way.
        Soak.run(
                "random shapes on GPUs",
                soak -> {
                    while (soak.nextRound()) {
                        Random random = new Random(soak.roundSeed());
                        List<ProcessGroup> groups =
                                ProcessGroups.local("cuda_p2p", worldSize, options(random));
                        long seed = random.nextLong();
                        try {
                            ProcessGroups.run(
                                    groups,
                                    group -> {
                                        P2pRanks.run(group, () -> rank(soak, group, seed));
                                        return null;
                                    });
                        } finally {
                            groups.forEach(ProcessGroup::destroy);
                        }
                    }
                    soak.requireAll(
                            List.of(
                                    "allReduce",
                                    "allGatherMatmul",
                                    "matmulReduceScatter",
                                    "allReduceRmsNorm"));
                });
    }

    /** Sometimes calls are compared before they run, sometimes buffers are too small for many. */
    private static CudaP2pOptions options(Random random) {
        CudaP2pOptions.Builder options =
                random.nextBoolean() ? P2pRanks.options() : P2pRanks.verifiedOptions();
        return options.optBufferSize(random.nextInt(4) == 0 ? 64 << 10 : 8 << 20)
                .optHeapSize(4 << 20)
                .build();
    }

    private void rank(Soak soak, ProcessGroup group, long seed) {
        RandomProgram.ofCollectives(group, seed).run(TIMES).forEach(soak::add);
        new RandomOperators(group, seed).run(TIMES).forEach(soak::add);
    }

    @Test
    void killedRanks() throws InterruptedException {
        Soak.run(
                "kills on GPUs",
                soak -> {
                    while (soak.nextRound()) {
                        Random random = new Random(soak.roundSeed());
                        switch (random.nextInt(3)) {
                            case 0 -> kill(random, CudaP2pVictimMain.class, "during");
                            case 1 -> kill(random, CudaP2pVictimMain.class, "between");
                            default -> kill(random, FusedVictimMain.class);
                        }
                        soak.add("kills", 1);
                    }
                });
    }

    private void kill(Random random, Class<?> main, String... arguments)
            throws InterruptedException {
        Survivors.check(worldSize, random.nextLong(), main, arguments);
    }
}
