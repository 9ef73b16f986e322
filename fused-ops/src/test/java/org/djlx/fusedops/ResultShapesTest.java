// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.List;
import java.util.function.BiConsumer;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Shapes without arrays are those of the operators' results, and are refused alike. */
@Timeout(60)
class ResultShapesTest {

    private static void run(int ranks, BiConsumer<ProcessGroup, NDManager> body) {
        List<ProcessGroup> groups = ProcessGroups.local(ranks);
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        try (NDManager manager = NDManager.newBaseManager()) {
                            body.accept(group, manager);
                        }
                        return null;
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 2, 3})
    void shapesAreThoseOfTheResults(int ranks) {
        run(ranks, (group, manager) -> compare(group, manager, ranks));
    }

    private static void compare(ProcessGroup group, NDManager manager, int ranks) {
        Shape a = new Shape(6, 12, 5);
        for (int dimension : new int[] {0, 1, 2, -1, -3}) {
            boolean last = dimension == 2 || dimension == -1;
            long inner = last ? 5L * ranks : 5;
            List<Shape> bs = List.of(new Shape(inner, 7), new Shape(inner, 4));
            GatheredMatmul result =
                    FusedOps.allGatherMatmul(
                            manager.ones(a),
                            bs.stream().map(manager::ones).toList(),
                            dimension,
                            group,
                            true);
            List<Shape> actual = new ArrayList<>(List.of(result.gathered().get().getShape()));
            result.outputs().forEach(output -> actual.add(output.getShape()));
            assertEquals(actual, FusedOps.shapesOfAllGatherMatmul(a, bs, dimension, ranks));
            Shape b = new Shape(5, 18);
            NDArray scattered =
                    FusedOps.matmulReduceScatter(
                            manager.ones(a), manager.ones(b), ReduceOp.SUM, dimension, group);
            assertEquals(
                    scattered.getShape(),
                    FusedOps.shapeOfMatmulReduceScatter(a, b, dimension, ranks));
        }
        Shape b = new Shape(5, 7);
        NDArray reduced = FusedOps.matmulAllReduce(manager.ones(a), manager.ones(b), group);
        assertEquals(reduced.getShape(), FusedOps.shapeOfMatmulAllReduce(a, b));
    }

    @Test
    void misfitsHaveTheOperatorsErrors() {
        run(
                2,
                (group, manager) -> {
                    for (Shape a : List.of(new Shape(4), new Shape(4, 3), new Shape(3, 6))) {
                        for (Shape b : List.of(new Shape(5, 4), new Shape(6), new Shape(6, 7))) {
                            alike(
                                    () -> FusedOps.shapeOfMatmulReduceScatter(a, b, 0, 2),
                                    () ->
                                            FusedOps.matmulReduceScatter(
                                                    manager.ones(a),
                                                    manager.ones(b),
                                                    ReduceOp.SUM,
                                                    0,
                                                    group));
                        }
                        Shape b = new Shape(5, 4);
                        alike(
                                () -> FusedOps.shapesOfAllGatherMatmul(a, List.of(b), 1, 2),
                                () ->
                                        FusedOps.allGatherMatmul(
                                                manager.ones(a),
                                                List.of(manager.ones(b)),
                                                1,
                                                group));
                    }
                });
        assertThrows(
                IllegalArgumentException.class,
                () -> FusedOps.shapeOfMatmulReduceScatter(new Shape(2, 2), new Shape(2, 2), 0, 0));
        assertThrows(
                IllegalArgumentException.class, () -> FusedOps.shapeOfMatmulAllReduce(null, null));
    }

    private static void alike(Executable shapes, Executable operator) {
        assertEquals(
                assertThrows(IllegalArgumentException.class, operator).getMessage(),
                assertThrows(IllegalArgumentException.class, shapes).getMessage());
    }
}
