// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import ai.djl.ndarray.types.Shape;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Consumer;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.internal.cudap2p.Epochs;
import org.djlx.collectives.internal.cudap2p.P2pRanks;
import org.djlx.fusedops.cost.Path;
import org.djlx.nativeops.torch.ScalarType;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Very high epochs of fused operators. */
@Tag("gpu")
@Timeout(120)
class EpochsOfOperatorsGpuTest {

    private static final int CALLS = 12;
    private static final ScalarType TYPE = ScalarType.BFLOAT16;

    private static void run(CudaP2pOptions options, Consumer<ProcessGroup> body) {
        List<ProcessGroup> groups = ProcessGroups.local("cuda_p2p", P2pRanks.require(), options);
        LocalRanks.run(groups, group -> P2pRanks.run(group, () -> body.accept(group)));
    }

    @ParameterizedTest
    @EnumSource(names = {"FUSED", "PIPELINED", "GATHERED"})
    void epochsPass32Bits(Path path) {
        checkFrom((1L << 32) - 6, (1L << 32) - 6, path);
    }

    /** Words of 32 bits would look as if the peers were ahead. */
    @ParameterizedTest
    @EnumSource(names = {"FUSED", "PIPELINED", "GATHERED"})
    void wordsFromBillionsOfOperationsAgoDoNotCount(Path path) {
        checkFrom(1L << 32, 100, path);
    }

    @SuppressWarnings("try") // the scope is not named in the body
    private static void checkFrom(long epoch, long rare, Path path) {
        CyclicBarrier step = new CyclicBarrier(P2pRanks.require());
        assumeTrue(path != Path.FUSED || FusedOpsGpuTest.isHopper(), "the GPU is not a Hopper");
        CudaP2pOptions options = P2pRanks.options().optBufferSize(16 << 20).build();
        try (FusedOps.Scope scope = FusedOps.force(path);
                UsageCounter usage = FusedOps.countUsage()) {
            run(
                    options,
                    group -> {
                        check(group, 1, 0);
                        Epochs.set(group, options, step, epoch, rare);
                        if (group.rank() == 1) {
                            LockSupport.parkNanos(50_000_000); // A wrong wait ends meanwhile.
                        }
                        for (int call = 1; call <= CALLS; call++) {
                            check(group, 1, call);
                        }
                    });
            long calls = 2L * (CALLS + 1) * P2pRanks.require();
            assertEquals(Map.of(path, calls), Map.of(path, usage.calls(path)));
        }
    }

    private static void check(ProcessGroup group, int times, int seed) {
        new FusedCase(TYPE, new Shape(160, 64), List.of(320), 0, false, seed)
                .checkAllGatherMatmul(group, times);
        Shape all = new Shape(160L * group.worldSize(), 64);
        new FusedCase(TYPE, all, List.of(320), 0, false, seed)
                .checkMatmulReduceScatter(group, ReduceOp.SUM, times);
    }
}
