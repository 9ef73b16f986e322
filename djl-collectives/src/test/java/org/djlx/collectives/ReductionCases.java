// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import static org.djlx.collectives.CaseInputs.COUNTS;
import static org.djlx.collectives.CaseInputs.OPS;
import static org.djlx.collectives.CaseInputs.REDUCED;
import static org.djlx.collectives.CaseInputs.assertReduced;
import static org.djlx.collectives.CaseInputs.empty;
import static org.djlx.collectives.CaseInputs.inputs;
import static org.djlx.collectives.CaseInputs.seed;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.djlx.collectives.ContractCases.Case;
import org.djlx.collectives.spi.Backends;
import org.djlx.collectives.spi.OpType;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/** Operations that reduce. */
final class ReductionCases {

    private static final List<ScalarType> COMPLEX =
            List.of(ScalarType.COMPLEX64, ScalarType.COMPLEX128, ScalarType.COMPLEX32);

    private ReductionCases() {}

    static Map<String, Case> all() {
        Map<String, Case> cases = new LinkedHashMap<>();
        cases.put("allReduce", ReductionCases::allReduce);
        cases.put("allReduceStrided", ReductionCases::allReduceStrided);
        cases.put("allReduceSameBits", ReductionCases::allReduceSameBits);
        cases.put("reduce", ReductionCases::reduce);
        cases.put("reduceStrided", ReductionCases::reduceStrided);
        cases.put("reduceScatter", ReductionCases::reduceScatter);
        cases.put("reduceScatterUneven", ReductionCases::reduceScatterUneven);
        cases.put("reduceScatterTensor", ReductionCases::reduceScatterTensor);
        cases.put("reduceScatterInPlace", ReductionCases::reduceScatterInPlace);
        cases.put("complexNumbers", ReductionCases::complexNumbers);
        cases.put("factorOfEachElement", ReductionCases::factorOfEachElement);
        return cases;
    }

    private static void allReduce(ProcessGroup group, NDManager manager) {
        int salt = 0;
        for (ScalarType type : REDUCED) {
            for (ReduceOp op : OPS) {
                boolean supported = supports(group, type, op);
                for (int count : COUNTS) {
                    if (!supported || count > 1000 && op != ReduceOp.SUM) {
                        continue;
                    }
                    Shape shape = new Shape(count);
                    double[][] inputs = inputs(group, manager, type, shape, ++salt);
                    try (NDArray tensor =
                            TestArrays.random(manager, type, shape, seed(group.rank(), salt))) {
                        group.allReduce(tensor, op).await();
                        assertReduced(inputs, 0, tensor, op, type);
                    }
                }
            }
        }
    }

    private static boolean supports(ProcessGroup group, ScalarType type, ReduceOp op) {
        return Backends.get(group.backendName()).support().supports(OpType.ALL_REDUCE, type, op);
    }

    private static void allReduceStrided(ProcessGroup group, NDManager manager) {
        for (Shape shape : List.of(new Shape(5), new Shape(7, 3), new Shape(3, 4, 5))) {
            for (ScalarType type : List.of(ScalarType.FLOAT32, ScalarType.BFLOAT16)) {
                double[][] inputs = inputs(group, manager, type, shape, 1);
                NDArray tensor =
                        TestArrays.randomStrided(manager, type, shape, seed(group.rank(), 1));
                assertFalse(Torch.isContiguous(tensor));
                group.allReduce(tensor, ReduceOp.SUM).await();
                assertReduced(inputs, 0, tensor, ReduceOp.SUM, type);
            }
        }
        // A scalar has no dimensions at all.
        NDArray scalar = TestArrays.of(manager, ScalarType.FLOAT32, new Shape(), group.rank());
        group.allReduce(scalar, ReduceOp.MAX).await();
        assertEquals(group.worldSize() - 1, TestArrays.values(scalar)[0]);
    }

    private static void allReduceSameBits(ProcessGroup group, NDManager manager) {
        for (ScalarType type : List.of(ScalarType.FLOAT32, ScalarType.BFLOAT16)) {
            Shape shape = new Shape(50_001);
            double[] first = null;
            for (int run = 0; run < 3; run++) {
                NDArray tensor = TestArrays.random(manager, type, shape, seed(group.rank(), 77));
                group.allReduce(tensor, ReduceOp.SUM).await();
                List<NDArray> all = empty(manager, type, shape, group.worldSize());
                group.allGather(all, tensor).await();
                for (NDArray other : all) {
                    double[] values = TestArrays.values(other);
                    first = first == null ? values : first;
                    assertArrayEquals(first, values);
                }
            }
        }
    }

    /** Sizes that do not divide evenly among the blocks of a kernel. */
    private static void factorOfEachElement(ProcessGroup group, NDManager manager) {
        ReduceOp op = ReduceOp.premulSum(0.5);
        int salt = 340;
        for (ScalarType type : List.of(ScalarType.FLOAT32, ScalarType.BFLOAT16)) {
            for (long size : new long[] {1, 8_193, 40_002, 131_103}) {
                salt++;
                Shape shape = new Shape(size);
                double[][] inputs = inputs(group, manager, type, shape, salt);
                NDArray tensor = TestArrays.random(manager, type, shape, seed(group.rank(), salt));
                group.allReduce(tensor, op).await();
                assertReduced(inputs, 0, tensor, op, type);
            }
        }
    }

    /** Sums and means of pairs of reals, in memory and in tensors that are conjugated lazily. */
    private static void complexNumbers(ProcessGroup group, NDManager manager) {
        int n = group.worldSize();
        int self = group.rank();
        int salt = 300;
        Shape part = new Shape(20_001);
        Shape whole = new Shape(n * part.size());
        for (ScalarType type : COMPLEX) {
            for (ReduceOp op : List.of(ReduceOp.SUM, ReduceOp.AVG, ReduceOp.premulSum(0.5))) {
                salt++;
                double[][] inputs = inputs(group, manager, type, part, salt);
                NDArray tensor = TestArrays.random(manager, type, part, seed(self, salt));
                group.allReduce(tensor, op).await();
                assertReduced(inputs, 0, tensor, op, type);
                NDArray reduced = TestArrays.random(manager, type, part, seed(self, salt));
                group.reduce(reduced, n - 1, op).await();
                if (self == n - 1) {
                    assertReduced(inputs, 0, reduced, op, type);
                }
                NDArray input = TestArrays.random(manager, type, whole, seed(self, salt));
                double[][] all = inputs(group, manager, type, whole, salt);
                int first = 2 * self * (int) part.size();
                NDArray output = Torch.empty(manager, part, type);
                group.reduceScatterTensor(output, input, op).await();
                assertReduced(all, first, output, op, type);
                List<NDArray> outputs = List.of(Torch.empty(manager, part, type));
                group.reduceScatterCoalesced(outputs, List.of(input), op).await();
                assertReduced(all, first, outputs.get(0), op, type);
            }
            for (ReduceOp op : ReduceOp.constants()) {
                if (op != ReduceOp.SUM && op != ReduceOp.AVG) {
                    NDArray tensor = Torch.empty(manager, part, type);
                    assertThrows(IllegalArgumentException.class, () -> group.allReduce(tensor, op));
                }
            }
        }
        float[] values = {1, 2, 3, self + 1};
        NDArray conjugate = manager.create(values, new Shape(2, 2)).complex().conj();
        group.allReduce(conjugate, ReduceOp.SUM).await();
        double[] sums = {n, -2 * n, 3 * n, -n * (n + 1) / 2.0};
        assertArrayEquals(sums, TestArrays.values(conjugate));
        NDArray one = TestArrays.of(manager, ScalarType.COMPLEX64, new Shape(1), self, 1);
        group.allReduceCoalesced(List.of(one, manager.ones(new Shape(3))), ReduceOp.SUM).await();
        assertArrayEquals(new double[] {n * (n - 1) / 2.0, n}, TestArrays.values(one));
    }

    private static void reduce(ProcessGroup group, NDManager manager) {
        int salt = 100;
        for (ScalarType type : REDUCED) {
            for (int count : COUNTS) {
                ReduceOp op = OPS.get(salt % OPS.size());
                op = supports(group, type, op) ? op : ReduceOp.SUM;
                int root = salt % group.worldSize();
                Shape shape = new Shape(count);
                double[][] inputs = inputs(group, manager, type, shape, ++salt);
                NDArray tensor = TestArrays.random(manager, type, shape, seed(group.rank(), salt));
                group.reduce(tensor, root, op).await();
                if (group.rank() == root) {
                    assertReduced(inputs, 0, tensor, op, type);
                } else {
                    assertArrayEquals(inputs[group.rank()], TestArrays.values(tensor));
                }
                tensor.close();
            }
        }
    }

    private static void reduceStrided(ProcessGroup group, NDManager manager) {
        for (Shape shape : List.of(new Shape(7, 3), new Shape(300, 100))) {
            for (int root = 0; root < group.worldSize(); root++) {
                ScalarType type = ScalarType.FLOAT32;
                double[][] inputs = inputs(group, manager, type, shape, 90);
                NDArray tensor =
                        TestArrays.randomStrided(manager, type, shape, seed(group.rank(), 90));
                group.reduce(tensor, root, ReduceOp.AVG).await();
                if (group.rank() == root) {
                    assertReduced(inputs, 0, tensor, ReduceOp.AVG, type);
                } else {
                    assertArrayEquals(inputs[group.rank()], TestArrays.values(tensor));
                }
            }
        }
    }

    private static void reduceScatter(ProcessGroup group, NDManager manager) {
        int salt = 20;
        for (ScalarType type : REDUCED) {
            for (int count : COUNTS) {
                ReduceOp op = OPS.get(salt % OPS.size());
                op = supports(group, type, op) ? op : ReduceOp.SUM;
                salt++;
                Shape whole = new Shape(group.worldSize(), count);
                double[][] all = inputs(group, manager, type, whole, salt);
                NDArray input = TestArrays.random(manager, type, whole, seed(group.rank(), salt));
                List<NDArray> inputs = new ArrayList<>();
                for (int rank = 0; rank < group.worldSize(); rank++) {
                    inputs.add(input.get(rank));
                }
                NDArray output = Torch.empty(manager, new Shape(count), type);
                group.reduceScatter(output, inputs, op).await();
                assertReduced(all, group.rank() * count, output, op, type);
                output.close();
                input.close();
            }
        }
    }

    /** Rank r gets r + 1 columns, rank 1 none. */
    private static void reduceScatterUneven(ProcessGroup group, NDManager manager) {
        int salt = 140;
        for (ScalarType type : REDUCED) {
            ReduceOp op = OPS.get(salt % OPS.size());
            op = supports(group, type, op) ? op : ReduceOp.SUM;
            salt++;
            for (boolean inPlace : new boolean[] {false, true}) {
                List<NDArray> inputs = new ArrayList<>();
                for (int rank = 0; rank < group.worldSize(); rank++) {
                    Shape shape = new Shape(3, rank == 1 ? 0 : rank + 1);
                    long seed = seed(group.rank(), salt + 1000 * rank);
                    inputs.add(TestArrays.random(manager, type, shape, seed));
                }
                int self = group.rank();
                Shape own = inputs.get(self).getShape();
                double[][] all = inputs(group, manager, type, own, salt + 1000 * self);
                NDArray output = inPlace ? inputs.get(self) : Torch.empty(manager, own, type);
                Work work = group.reduceScatter(output, inputs, op);
                work.await();
                assertReduced(all, 0, output, op, type);
                assertEquals(List.of(output), work.result());
                inputs.forEach(NDArray::close);
            }
        }
    }

    private static void reduceScatterTensor(ProcessGroup group, NDManager manager) {
        int salt = 40;
        for (ScalarType type : REDUCED) {
            for (int count : COUNTS) {
                ReduceOp op = OPS.get(salt % OPS.size());
                op = supports(group, type, op) ? op : ReduceOp.MAX;
                salt++;
                Shape whole = new Shape((long) group.worldSize() * count);
                double[][] all = inputs(group, manager, type, whole, salt);
                NDArray input = TestArrays.random(manager, type, whole, seed(group.rank(), salt));
                NDArray output = Torch.empty(manager, new Shape(count), type);
                group.reduceScatterTensor(output, input, op).await();
                assertReduced(all, group.rank() * count, output, op, type);
                output.close();
                input.close();
            }
        }
    }

    private static void reduceScatterInPlace(ProcessGroup group, NDManager manager) {
        int rows = 30_000;
        Shape whole = new Shape((long) group.worldSize() * rows);
        for (ScalarType type : List.of(ScalarType.FLOAT32, ScalarType.FLOAT16)) {
            for (ReduceOp op : List.of(ReduceOp.AVG, ReduceOp.premulSum(1.5))) {
                double[][] all = inputs(group, manager, type, whole, 60);
                NDArray input = TestArrays.random(manager, type, whole, seed(group.rank(), 60));
                NDArray slice = input.get(rows * group.rank() + ":" + rows * (group.rank() + 1));
                group.reduceScatterTensor(slice, input, op).await();
                assertReduced(all, group.rank() * rows, slice, op, type);
                // The parts for other ranks are unchanged.
                double[] after = TestArrays.values(input);
                for (int i = 0; i < after.length; i++) {
                    if (i / rows != group.rank()) {
                        assertEquals(all[group.rank()][i], after[i]);
                    }
                }
            }
        }
    }
}
