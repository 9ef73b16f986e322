// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import java.util.List;
import org.djlx.collectives.ProcessGroup;
import org.djlx.fusedops.ExactCase.Kind;
import org.djlx.fusedops.cost.Path;
import org.djlx.nativeops.torch.ScalarType;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/**
 * Fused operators with three, four and eight ranks, by each path. Where ranks share a GPU, cuBLAS
 * multiplies these sizes in clusters of eight blocks that fill an SM each: they must find room
 * while kernels of the other ranks wait.
 */
@Tag("gpu")
@Timeout(300)
class ManyRanksGpuTest {

    private static final int CALLS = 100;

    @ParameterizedTest
    @CsvSource({
        "3, 267, 384, 768",
        "3, 280, 376, 408",
        "3, 256, 384, 768",
        "4, 171, 512, 1024",
        "4, 171, 448, 672",
        "4, 256, 512, 1024",
        "8, 125, 1024, 1024",
    })
    void ends(int ranks, int rows, int columns, int inner) {
        List<ProcessGroup> groups = ExactRanks.groups(ranks);
        try (ExactRanks exact = new ExactRanks()) {
            for (Path path : Path.values()) {
                if (path == Path.NCCL) {
                    continue;
                }
                for (Kind kind : List.of(Kind.MATMUL_REDUCE_SCATTER, Kind.ALL_GATHER_MATMUL)) {
                    ExactCase one =
                            new ExactCase(
                                    kind, ScalarType.BFLOAT16, rows, inner, List.of(columns), 7);
                    exact.run(groups, path, List.of(one), CALLS);
                }
            }
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }
}
