// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import java.util.List;
import java.util.Random;
import org.djlx.collectives.ProcessGroup;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** The table of operations that {@link GpuSoakTest} runs, on the CPU. */
@Timeout(120)
class ExactCaseTest {

    private static final int CASES = 6;

    @ParameterizedTest
    @EnumSource(ExactCase.Kind.class)
    void sumsAreExact(ExactCase.Kind kind) {
        for (int worldSize = 2; worldSize <= 4; worldSize++) {
            Random random = new Random(worldSize);
            List<ExactCase> cases =
                    random.ints(CASES).mapToObj(ignored -> ExactCase.random(kind, random)).toList();
            LocalRanks.run(
                    worldSize, 16 << 20, group -> cases.forEach(one -> check(group, one, one)));
        }
    }

    /** Compares with what another case expects. */
    private static void check(ProcessGroup group, ExactCase one, ExactCase other) {
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            NDArray pool = ExactCase.pool(manager);
            NDList results = one.run(group, one.inputs(group, pool));
            for (NDArray each : other.compare(group, pool, results)) {
                assertEquals(0, each.getLong(0), one.toString());
            }
        }
    }

    /** The comparison of every kind tells operands of another seed. */
    @ParameterizedTest
    @EnumSource(ExactCase.Kind.class)
    void otherOperandsDiffer(ExactCase.Kind kind) {
        ExactCase one = ExactCase.random(kind, new Random(7));
        ExactCase other = one.withOtherSeed();
        LocalRanks.run(
                2,
                16 << 20,
                group -> assertThrows(AssertionError.class, () -> check(group, one, other)));
    }
}
