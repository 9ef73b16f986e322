// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import static org.djlx.collectives.CaseInputs.OPS;
import static org.djlx.collectives.CaseInputs.REDUCED;
import static org.djlx.collectives.CaseInputs.empty;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.time.Duration;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.djlx.collectives.ContractCases.Case;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.function.Executable;

/** Calls that do not fit together, and wrong arguments. */
final class ErrorCases {

    private ErrorCases() {}

    static Map<String, Case> all() {
        Map<String, Case> cases = new LinkedHashMap<>();
        cases.put("mismatches", ErrorCases::mismatches);
        cases.put("wrongArguments", ErrorCases::wrongArguments);
        cases.put("misfits", ErrorCases::misfits);
        cases.put("overlaps", ErrorCases::overlaps);
        cases.put("broadcastOutputs", ErrorCases::broadcastOutputs);
        cases.put("undefinedReductions", ErrorCases::undefinedReductions);
        return cases;
    }

    /** A broadcast tensor can be sent, but not be an output. */
    private static void broadcastOutputs(ProcessGroup group, NDManager manager) {
        int n = group.worldSize();
        int next = (group.rank() + 1) % n;
        NDArray tensor = manager.ones(new Shape(n, 3));
        NDArray wide = manager.ones(new Shape(n, 1)).broadcast(n, 3);
        List<NDArray> list = Collections.nCopies(n, tensor.duplicate());
        List<NDArray> wideList = Collections.nCopies(n, wide);
        ReduceOp sum = ReduceOp.SUM;
        assertRejected(() -> group.allReduce(wide, sum), "tensor of shape [");
        assertRejected(() -> group.reduce(wide, group.rank(), sum), "duplicate");
        assertRejected(() -> group.allGather(wideList, tensor), "outputs of shape [");
        assertRejected(() -> group.gather(wideList, tensor, group.rank()), "duplicate");
        assertRejected(() -> group.scatter(wide, list, group.rank()), "output of shape [");
        assertRejected(() -> group.reduceScatter(wide, list, sum), "duplicate");
        assertRejected(() -> group.allToAll(wideList, list), "duplicate");
        assertRejected(() -> group.allToAllSingle(wide, tensor), "duplicate");
        assertRejected(() -> group.allReduceCoalesced(List.of(tensor, wide), sum), "duplicate");
        if (n > 1) {
            assertRejected(() -> group.broadcast(wide, next), "dimension 1");
            assertRejected(() -> group.recv(wide, next, 0), "duplicate");
            NDArray result = group.rank() == 0 ? wide : tensor;
            group.broadcast(result, 0).await();
            assertEquals(1, TestArrays.values(result)[3 * n - 1]);
        }
    }

    private static void mismatches(ProcessGroup group, NDManager manager) {
        if (group.worldSize() == 1) {
            return;
        }
        boolean odd = group.rank() == group.worldSize() - 1;
        NDArray floats = manager.ones(new Shape(2, 3));
        NDArray other = manager.ones(new Shape(4));
        NDArray ints = TestArrays.random(manager, ScalarType.INT32, new Shape(2, 3), 1);
        assertMismatch(
                () -> group.allReduce(odd ? other : floats, ReduceOp.SUM).await(),
                "(float32, (2, 3), SUM)",
                "(float32, (4), SUM)");
        assertMismatch(
                () -> group.allReduce(odd ? ints : floats, ReduceOp.SUM).await(),
                "float32",
                "int32");
        assertMismatch(
                () -> group.allReduce(floats, odd ? ReduceOp.MAX : ReduceOp.SUM).await(),
                "SUM",
                "MAX");
        assertMismatch(
                () -> (odd ? group.barrier() : group.allReduce(floats, ReduceOp.SUM)).await(),
                "barrier",
                "allReduce");
        assertMismatch(
                () -> group.broadcast(floats, odd ? 1 : 0).await(),
                "broadcast(float32, (2, 3), root 0)",
                "broadcast(float32, (2, 3), root 1)");
        assertMismatch(
                () -> group.allReduce(floats, ReduceOp.premulSum(odd ? 0.5 : 0.25)).await(),
                "PREMUL_SUM(0.5)",
                "PREMUL_SUM(0.25)");
        assertMismatch(
                () -> group.reduce(floats, odd ? 1 : 0, ReduceOp.SUM).await(),
                "reduce(float32, (2, 3), SUM, root 0)",
                "reduce(float32, (2, 3), SUM, root 1)");
        // Nothing was changed, and the group still works.
        assertArrayEquals(new double[] {1, 1, 1, 1, 1, 1}, TestArrays.values(floats));
        group.allReduce(floats, ReduceOp.SUM).await();
        assertEquals(group.worldSize(), TestArrays.values(floats)[0]);
    }

    private static void assertMismatch(Executable call, String one, String another) {
        String message = assertThrows(CollectiveMismatchException.class, call).getMessage();
        assertTrue(message.contains(one), message);
        assertTrue(message.contains(another), message);
        assertTrue(message.contains("rank"), message);
    }

    private static void wrongArguments(ProcessGroup group, NDManager manager) {
        int n = group.worldSize();
        NDArray tensor = manager.ones(new Shape(2, 3));
        NDArray closed = manager.ones(new Shape(1));
        closed.close();
        assertRejected(() -> group.allReduce(null, ReduceOp.SUM), "tensor is null");
        assertRejected(() -> group.allReduce(tensor, null), "op is null");
        assertRejected(() -> group.allReduce(null, ReduceOp.SUM, false), "tensor is null");
        assertRejected(() -> group.newGroup(null), "ranks must not be null");
        assertRejected(() -> group.newGroup(List.of(0), null), "name is null");
        List<NDArray> holes = Collections.nCopies(group.worldSize(), null);
        assertRejected(() -> group.allGather(holes, tensor), "outputs[0] is null");
        assertRejected(
                () -> group.allReduce(closed, ReduceOp.SUM),
                "allReduce: tensor: the array is closed");
        assertRejected(() -> group.broadcast(tensor, n), "root " + n);
        assertRejected(() -> group.broadcast(tensor, -1), "root -1");
        assertRejected(() -> group.allGather(List.of(), tensor), "one tensor for each");
        assertRejected(
                () -> group.allGatherIntoTensor(manager.ones(new Shape(n + 1, 2, 3)), tensor),
                "times as many elements");
        NDArray ints = TestArrays.random(manager, ScalarType.INT32, new Shape(n, 2, 3), 1);
        assertRejected(() -> group.allGatherIntoTensor(ints, tensor), "INT32");
        assertRejected(() -> group.allReduce(ints, ReduceOp.AVG), "AVG");
        assertRejected(
                () ->
                        group.reduceScatterTensor(
                                manager.ones(new Shape(2)),
                                manager.ones(new Shape(2 * n + 1)),
                                ReduceOp.SUM),
                "times as many elements");
        assertRejected(() -> group.reduce(tensor, n, ReduceOp.SUM), "root " + n);
        assertRejected(() -> group.gather(List.of(), tensor, group.rank()), "one tensor for each");
        assertRejected(() -> group.scatter(tensor, null, group.rank()), "one tensor for each");
        if (n > 1) {
            int other = (group.rank() + 1) % n;
            List<NDArray> all = empty(manager, ScalarType.FLOAT32, new Shape(2, 3), n);
            assertRejected(() -> group.gather(all, tensor, other), "only the root, rank ");
            assertRejected(() -> group.scatter(tensor, all, other), "only the root, rank ");
            assertRejected(
                    () ->
                            group.allToAllSingle(
                                    manager.ones(new Shape(n + 1)), manager.ones(new Shape(n + 1))),
                    "not divisible by the world size");
        }
        assertRejected(
                () -> group.allToAllSingle(manager.ones(new Shape()), manager.ones(new Shape())),
                "first dimension");
        assertRejected(
                () ->
                        group.allToAllSingle(
                                manager.ones(new Shape(n)),
                                manager.ones(new Shape(n)),
                                new long[n + 1],
                                null),
                "splits of output");
        assertRejected(
                () ->
                        group.allToAllSingle(
                                manager.ones(new Shape(n, 2)), manager.ones(new Shape(n))),
                "equal dimensions except the first");
        assertRejected(() -> group.allToAll(List.of(), List.of()), "one tensor for each");
        assertRejected(() -> group.withTimeout(Duration.ZERO), "positive");
        NDArray eight = Torch.empty(manager, new Shape(3), ScalarType.FLOAT8_E5M2);
        assertRejected(() -> group.allReduce(eight, ReduceOp.SUM), "FLOAT8_E5M2");
        // Nothing was sent: all ranks are still together.
        group.barrier().await();
    }

    private static void misfits(ProcessGroup group, NDManager manager) {
        int n = group.worldSize();
        if (n == 1) {
            return;
        }
        // Rank 0 has a row more for rank 1 than that expects.
        long[] fitting = new long[n];
        Arrays.fill(fitting, 2);
        long[] splits = fitting.clone();
        splits[1] += group.rank() == 0 ? 1 : 0;
        NDArray input = manager.ones(new Shape(Arrays.stream(splits).sum()));
        NDArray output = manager.zeros(new Shape(2L * n));
        assertMismatch(
                () -> group.allToAllSingle(output, input, fitting, splits).await(),
                "rank 0 sends 12 bytes to rank 1, which expects 8",
                "allToAllSingle(float32");
        assertArrayEquals(new double[2 * n], TestArrays.values(output));
        NDArray even = manager.ones(new Shape(2L * n));
        group.allToAllSingle(output, even).await();
        assertArrayEquals(TestArrays.values(even), TestArrays.values(output));
    }

    private static void overlaps(ProcessGroup group, NDManager manager) {
        int n = group.worldSize();
        NDArray whole = manager.ones(new Shape(4L * n + 1));
        NDArray output = whole.get(":" + 4 * n);
        NDArray shifted = whole.get(4 * group.rank() + 1 + ":" + (4 * group.rank() + 5));
        assertRejected(() -> group.allGatherIntoTensor(output, shifted), "overlap");
        assertRejected(() -> group.reduceScatterTensor(shifted, output, ReduceOp.SUM), "overlap");
        assertRejected(() -> group.allToAllSingle(output, output), "overlap");
    }

    private static void undefinedReductions(ProcessGroup group, NDManager manager) {
        for (ScalarType type : REDUCED) {
            NDArray tensor = Torch.empty(manager, new Shape(2), type);
            for (ReduceOp op : OPS) {
                if (!op.isDefinedFor(type)) {
                    assertRejected(() -> group.allReduce(tensor, op), "not defined for " + type);
                }
            }
        }
    }

    private static void assertRejected(Executable call, String text) {
        String message = assertThrows(IllegalArgumentException.class, call).getMessage();
        assertTrue(message.contains(text), message);
    }
}
