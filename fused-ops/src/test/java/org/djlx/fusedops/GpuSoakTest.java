// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.Collections;
import java.util.EnumSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Consumer;
import java.util.stream.Stream;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.internal.cudap2p.CudaP2pVictimMain;
import org.djlx.collectives.internal.cudap2p.P2pRanks;
import org.djlx.collectives.internal.cudap2p.Survivors;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.collectives.soak.RandomProgram;
import org.djlx.collectives.soak.Soak;
import org.djlx.fusedops.cost.Path;
import org.djlx.nativeops.torch.ScalarType;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/**
 * On GPUs: random collectives and fused operators against plain Java and DJL in float64, with ranks
 * that are threads; and ranks that are processes, of which one is killed at a random moment. Each
 * round has a random number of ranks.
 */
@Tag("gpu")
@Tag("soak")
class GpuSoakTest {

    private static final int TIMES = 10;
    private static final int MANY_RANKS = 8; // that share a GPU, at most
    private static final int BATCHES = 3; // of cases, for each path
    private static final int CASES = 40; // of a batch
    private static final int CALLS = 2; // of a case in a row
    private static final int TIMES_FORCED = 3; // of each operator, by each path
    private static final int TIMES_LAUNCHES = 100; // of each operator on FUSED
    private static final List<Path> FORCED = List.of(Path.PIPELINED, Path.GATHERED, Path.FUSED);

    private static final int MOST_RANKS_OF_TWO = 4; // of each of two groups
    private static final int CALLS_OF_TWO = 5; // of a case in a row

    private int worldSize;

    @BeforeEach
    void requireGpus() {
        worldSize = P2pRanks.require();
    }

    /** Each round takes each path in turn where it is possible, and lets the model choose. */
    @Test
    void randomShapes() throws InterruptedException {
        P2pRanks.requireNccl(); // Some of the calls take its way.
        Soak.run(
                "random shapes on GPUs",
                soak -> {
                    Set<Path> possible = ConcurrentHashMap.newKeySet();
                    try (UsageCounter usage = FusedOps.countUsage()) {
                        while (soak.nextRound()) {
                            round(soak, new Random(soak.roundSeed()), possible);
                        }
                        for (Path path : Path.values()) {
                            soak.add(path.toString(), usage.calls(path));
                        }
                    }
                    soak.requireAll(
                            List.of(
                                    "allReduce",
                                    "allGatherMatmul",
                                    "matmulReduceScatter",
                                    "allReduceRmsNorm"));
                    soak.requireAll(possible);
                });
    }

    private void round(Soak soak, Random random, Set<Path> possible) {
        int ranks = ranks(soak, random, worldSize);
        List<ProcessGroup> groups = ProcessGroups.local("cuda_p2p", ranks, options(random));
        try {
            long programs = random.nextLong();
            run(
                    groups,
                    group -> {
                        possible.addAll(paths(group));
                        count(soak, group, RandomProgram.ofCollectives(group, programs).run(TIMES));
                    });
            List<Path> forced = new ArrayList<>(FORCED);
            forced.add(null);
            Collections.shuffle(forced, random);
            for (Path path : forced) {
                long seed = random.nextLong();
                forced(path, () -> run(groups, group -> operators(soak, group, seed)));
            }
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    /** How many ranks a round has, from two on. */
    private static int ranks(Soak soak, Random random, int most) {
        int ranks = 2 + random.nextInt(most - 1);
        soak.add("rounds of " + ranks + " ranks", 1);
        return ranks;
    }

    /** How many ranks that are threads a round may have. */
    private int mostThreads() {
        return P2pRanks.isShared() ? MANY_RANKS : worldSize;
    }

    /** For all ranks alike, which are threads of this process. */
    @SuppressWarnings("try") // the scope is not named in the body
    private static void forced(Path path, Runnable body) {
        try (FusedOps.Scope scope = path == null ? () -> {} : FusedOps.force(path)) {
            body.run();
        }
    }

    /** Adds up what ranks have called alike, once. */
    private static void count(Soak soak, ProcessGroup group, Map<String, Long> calls) {
        if (group.rank() == 0) {
            calls.forEach(soak::add);
        }
    }

    private static void run(List<ProcessGroup> groups, Consumer<ProcessGroup> body) {
        ProcessGroups.run(
                groups,
                group -> {
                    P2pRanks.run(group, () -> body.accept(group));
                    return null;
                });
    }

    /** Which of those that are forced a group has, for some operators. */
    private static Set<Path> paths(ProcessGroup group) {
        Set<Path> paths = EnumSet.noneOf(Path.class);
        if (group.isP2pAvailable()) {
            paths.add(Path.PIPELINED);
            P2pBuffers buffers = group.p2pBuffers().orElseThrow();
            if (buffers.oneShotSlots().isPresent()) {
                paths.add(Path.GATHERED);
            }
            if (buffers.kernelSignals().isPresent() && FusedOpsGpuTest.isHopper()) {
                paths.add(Path.FUSED);
            }
        }
        return paths;
    }

    /** Sometimes calls are compared before they run, sometimes buffers are too small for many. */
    private static CudaP2pOptions options(Random random) {
        CudaP2pOptions.Builder options =
                random.nextBoolean() ? P2pRanks.options() : P2pRanks.verifiedOptions();
        return options.optBufferSize(random.nextInt(4) == 0 ? 64 << 10 : 8 << 20)
                .optHeapSize(4 << 20)
                .build();
    }

    /** Begins with operators that every path can do, with the smallest buffers. */
    private static void operators(Soak soak, ProcessGroup group, long seed) {
        ScalarType type = ScalarType.BFLOAT16;
        new FusedCase(type, new Shape(16, 64), List.of(64), 0, false, seed)
                .checkAllGatherMatmul(group, 1);
        Shape all = new Shape(16L * group.worldSize(), 64);
        new FusedCase(type, all, List.of(64), 0, false, seed)
                .checkMatmulReduceScatter(group, ReduceOp.SUM, 1);
        count(soak, group, RandomOperators.ofAll(group, seed).run(TIMES_FORCED));
    }

    /** Also where ranks share a GPU. */
    @Test
    @SuppressWarnings("try") // the scope is not named in the body
    void fused() throws InterruptedException {
        assumeTrue(FusedOpsGpuTest.isHopper(), "the GPU is not a Hopper");
        Soak.run(
                "fused path on GPUs",
                soak -> {
                    CudaP2pOptions options = P2pRanks.options().optBufferSize(64 << 20).build();
                    try (FusedOps.Scope scope = FusedOps.force(Path.FUSED);
                            UsageCounter usage = FusedOps.countUsage()) {
                        while (soak.nextRound()) {
                            Random random = new Random(soak.roundSeed());
                            int ranks = ranks(soak, random, mostThreads());
                            List<ProcessGroup> groups =
                                    ProcessGroups.local("cuda_p2p", ranks, options);
                            try {
                                long seed = random.nextLong();
                                run(groups, group -> fusedCalls(soak, group, seed));
                            } finally {
                                groups.forEach(ProcessGroup::destroy);
                            }
                        }
                        usage.choices()
                                .keySet()
                                .forEach(each -> assertEquals(Path.FUSED, each.path()));
                        soak.add("calls of all ranks", usage.calls(Path.FUSED));
                    }
                });
    }

    /**
     * Two to eight ranks, also where they share a GPU: each round takes another number of ranks,
     * forces each path in turn, lets the model choose, and mixes operators and all-reduces of
     * random sizes.
     */
    @Test
    void manyRanks() throws InterruptedException {
        Soak.run(
                "random numbers of ranks on GPUs",
                soak -> {
                    try (ExactRanks exact = new ExactRanks();
                            UsageCounter usage = FusedOps.countUsage()) {
                        while (soak.nextRound()) {
                            Random random = new Random(soak.roundSeed());
                            int ranks = ranks(soak, random, mostThreads());
                            List<ProcessGroup> groups = ExactRanks.groups(ranks);
                            try {
                                manyRanks(soak, exact, groups, random);
                            } finally {
                                groups.forEach(ProcessGroup::destroy);
                            }
                        }
                        for (Path path : Path.values()) {
                            soak.add("calls of all ranks by " + path, usage.calls(path));
                        }
                    }
                    soak.requireAll(ExactCase.KINDS);
                });
    }

    private static void manyRanks(
            Soak soak, ExactRanks exact, List<ProcessGroup> groups, Random random) {
        List<Path> forced = new ArrayList<>(FORCED);
        forced.add(null);
        Collections.shuffle(forced, random);
        for (Path path : forced) {
            for (int batch = 0; batch < BATCHES; batch++) {
                exact.run(groups, path, cases(soak, random), CALLS);
                soak.progress(
                        String.format("%d ranks, path %s, %d cases", groups.size(), path, CASES));
            }
        }
    }

    /**
     * Two groups of two to four ranks each on the same GPUs, which mix all operators at the same
     * time, in orders of their own.
     */
    @Test
    void twoGroups() throws InterruptedException {
        Soak.run(
                "two groups on the same GPUs",
                soak -> {
                    try (ExactRanks one = new ExactRanks();
                            ExactRanks other = new ExactRanks()) {
                        while (soak.nextRound()) {
                            Random random = new Random(soak.roundSeed());
                            int most = Math.min(MOST_RANKS_OF_TWO, mostThreads());
                            List<ProcessGroup> first = ExactRanks.groups(ranks(soak, random, most));
                            try {
                                List<ProcessGroup> second =
                                        ExactRanks.groups(ranks(soak, random, most));
                                try {
                                    twoGroups(soak, random, one, first, other, second);
                                } finally {
                                    second.forEach(ProcessGroup::destroy);
                                }
                            } finally {
                                first.forEach(ProcessGroup::destroy);
                            }
                        }
                    }
                    soak.requireAll(ExactCase.KINDS);
                });
    }

    @SuppressWarnings("try") // the scope is not named in the body
    private static void twoGroups(
            Soak soak,
            Random random,
            ExactRanks one,
            List<ProcessGroup> first,
            ExactRanks other,
            List<ProcessGroup> second) {
        for (Path path : FORCED) {
            List<ExactCase> ofFirst = cases(soak, random);
            List<ExactCase> ofSecond = cases(soak, random);
            forced(
                    path,
                    () -> {
                        // The first call of a size loads kernels of cuBLAS, which must not happen
                        // while kernels on the same GPU wait; see optSharedGpus.
                        one.run(first, ofFirst, 1);
                        other.run(second, ofSecond, 1);
                        together(
                                () -> one.run(first, ofFirst, CALLS_OF_TWO),
                                () -> other.run(second, ofSecond, CALLS_OF_TWO));
                    });
            soak.progress(
                    String.format("%d and %d ranks, path %s", first.size(), second.size(), path));
        }
    }

    private static void together(Runnable first, Runnable second) {
        CompletableFuture<Void> behind =
                CompletableFuture.runAsync(
                        second, task -> new Thread(task, "second group").start());
        try {
            first.run();
        } finally {
            behind.handle((nothing, failure) -> null).join();
        }
        behind.join();
    }

    private static List<ExactCase> cases(Soak soak, Random random) {
        List<ExactCase> cases =
                Stream.generate(() -> ExactCase.random(random)).limit(CASES).toList();
        cases.forEach(one -> soak.add(one.kind().toString(), 1));
        return cases;
    }

    private static void fusedCalls(Soak soak, ProcessGroup group, long seed) {
        count(soak, group, RandomOperators.fusedOnly(group, seed).run(TIMES_LAUNCHES));
    }

    @Test
    void killedRanks() throws InterruptedException {
        Soak.run(
                "kills on GPUs",
                soak -> {
                    while (soak.nextRound()) {
                        Random random = new Random(soak.roundSeed());
                        int ranks = ranks(soak, random, worldSize);
                        switch (random.nextInt(4)) {
                            case 0 -> kill(ranks, random, CudaP2pVictimMain.class, "during");
                            case 1 -> kill(ranks, random, CudaP2pVictimMain.class, "between");
                            case 2 -> kill(ranks, random, FusedVictimMain.class);
                            default -> kill(ranks, random, FusedVictimMain.class, "2"); // FUSED
                        }
                        soak.add("kills", 1);
                    }
                });
    }

    private static void kill(int ranks, Random random, Class<?> main, String... arguments)
            throws InterruptedException {
        Survivors.check(ranks, 1, random.nextLong(), main, arguments);
    }
}
