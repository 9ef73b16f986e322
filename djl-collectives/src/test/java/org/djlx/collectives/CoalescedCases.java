// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import static org.djlx.collectives.CaseInputs.assertReduced;
import static org.djlx.collectives.CaseInputs.concatenated;
import static org.djlx.collectives.CaseInputs.inputs;
import static org.djlx.collectives.CaseInputs.seed;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.djlx.collectives.ContractCases.Case;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.function.Executable;

/** Collectives on several tensors at once. */
final class CoalescedCases {

    private CoalescedCases() {}

    static Map<String, Case> all() {
        Map<String, Case> cases = new LinkedHashMap<>();
        cases.put("allReduceCoalesced", CoalescedCases::allReduceCoalesced);
        cases.put("allGatherCoalesced", CoalescedCases::allGatherCoalesced);
        cases.put("reduceScatterCoalesced", CoalescedCases::reduceScatterCoalesced);
        cases.put("coalescedMismatch", CoalescedCases::coalescedMismatch);
        cases.put("coalescedOnUnusableGroups", CoalescedCases::coalescedOnUnusableGroups);
        return cases;
    }

    private static final List<ScalarType> TYPES =
            List.of(
                    ScalarType.FLOAT32,
                    ScalarType.BFLOAT16,
                    ScalarType.FLOAT32,
                    ScalarType.INT64,
                    ScalarType.FLOAT32,
                    ScalarType.BFLOAT16);
    private static final List<Shape> SHAPES =
            List.of(
                    new Shape(3, 5),
                    new Shape(7),
                    new Shape(0),
                    new Shape(2, 2, 2),
                    new Shape(),
                    new Shape(40_000));

    private static void allReduceCoalesced(ProcessGroup group, NDManager manager) {
        List<NDArray> tensors = new ArrayList<>();
        for (int i = 0; i < TYPES.size(); i++) {
            long seed = seed(group.rank(), i);
            tensors.add(
                    i == 0
                            ? TestArrays.randomStrided(manager, TYPES.get(i), SHAPES.get(i), seed)
                            : TestArrays.random(manager, TYPES.get(i), SHAPES.get(i), seed));
        }
        Work work = group.allReduceCoalesced(tensors, ReduceOp.SUM);
        work.await();
        assertTrue(work.isSuccess());
        assertEquals(tensors, work.result());
        for (int i = 0; i < TYPES.size(); i++) {
            double[][] inputs = inputs(group, manager, TYPES.get(i), SHAPES.get(i), i);
            assertReduced(inputs, 0, tensors.get(i), ReduceOp.SUM, TYPES.get(i));
        }
    }

    private static void allGatherCoalesced(ProcessGroup group, NDManager manager) {
        int n = group.worldSize();
        List<NDArray> inputs = new ArrayList<>();
        List<NDArray> outputs = new ArrayList<>();
        for (int i = 0; i < TYPES.size(); i++) {
            long seed = seed(group.rank(), i);
            inputs.add(TestArrays.random(manager, TYPES.get(i), SHAPES.get(i), seed));
            Shape whole = new Shape(n, SHAPES.get(i).size());
            outputs.add(
                    i == 1
                            ? TestArrays.randomStrided(manager, TYPES.get(i), whole, 1)
                            : Torch.empty(manager, whole, TYPES.get(i)));
        }
        Work work = group.allGatherCoalesced(outputs, inputs);
        // Tensors closed while the operation is running stay alive until its end.
        inputs.forEach(NDArray::close);
        work.await(Duration.ofMinutes(1));
        for (int i = 0; i < TYPES.size(); i++) {
            double[][] all = inputs(group, manager, TYPES.get(i), SHAPES.get(i), i);
            assertArrayEquals(concatenated(all), TestArrays.values(outputs.get(i)));
        }
    }

    private static void reduceScatterCoalesced(ProcessGroup group, NDManager manager) {
        int n = group.worldSize();
        List<NDArray> inputs = new ArrayList<>();
        List<NDArray> outputs = new ArrayList<>();
        for (int i = 0; i < TYPES.size(); i++) {
            Shape whole = new Shape(n, SHAPES.get(i).size());
            long seed = seed(group.rank(), i);
            inputs.add(
                    i == 5
                            ? TestArrays.randomStrided(manager, TYPES.get(i), whole, seed)
                            : TestArrays.random(manager, TYPES.get(i), whole, seed));
            outputs.add(Torch.empty(manager, SHAPES.get(i), TYPES.get(i)));
        }
        List<NDArray> result =
                group.reduceScatterCoalesced(outputs, inputs, ReduceOp.MAX)
                        .getFuture()
                        .toCompletableFuture()
                        .join();
        assertEquals(outputs, result);
        for (int i = 0; i < TYPES.size(); i++) {
            int count = (int) SHAPES.get(i).size();
            double[][] all = inputs(group, manager, TYPES.get(i), new Shape(n, count), i);
            assertReduced(all, group.rank() * count, outputs.get(i), ReduceOp.MAX, TYPES.get(i));
        }
    }

    private static void coalescedMismatch(ProcessGroup group, NDManager manager) {
        if (group.worldSize() == 1) {
            return;
        }
        // As many elements on all ranks, but not in the same tensors.
        List<NDArray> tensors =
                group.rank() == 0
                        ? List.of(manager.ones(new Shape(2)), manager.ones(new Shape(4)))
                        : List.of(manager.ones(new Shape(4)), manager.ones(new Shape(2)));
        Work work = group.allReduceCoalesced(tensors, ReduceOp.SUM);
        assertThrows(CollectiveMismatchException.class, work::await);
        assertFalse(work.isSuccess());
        assertTrue(work.exception().orElseThrow() instanceof CollectiveMismatchException);
        assertArrayEquals(
                new double[] {1, 1}, TestArrays.values(tensors.get(group.rank() == 0 ? 0 : 1)));
        assertThrows(
                IllegalArgumentException.class, () -> group.allGatherCoalesced(List.of(), tensors));
        assertThrows(
                IllegalArgumentException.class, () -> group.allGatherCoalesced(tensors, tensors));
    }

    /** Also calls that would do nothing. */
    private static void coalescedOnUnusableGroups(ProcessGroup group, NDManager manager) {
        ProcessGroup destroyed = group.split(0, 0);
        destroyed.destroy();
        ProcessGroup another = group.split(-1, 0);
        for (ProcessGroup unusable : List.of(destroyed, another)) {
            for (List<NDArray> list : List.of(List.<NDArray>of(), List.of(manager.create(1f)))) {
                for (Executable call :
                        List.<Executable>of(
                                () -> unusable.allReduceCoalesced(list, ReduceOp.SUM),
                                () -> unusable.allGatherCoalesced(list, list),
                                () -> unusable.reduceScatterCoalesced(list, list, ReduceOp.SUM))) {
                    assertThrows(IllegalStateException.class, call);
                }
            }
        }
    }
}
