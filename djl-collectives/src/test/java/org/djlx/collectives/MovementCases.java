// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import static org.djlx.collectives.CaseInputs.COUNTS;
import static org.djlx.collectives.CaseInputs.MOVED;
import static org.djlx.collectives.CaseInputs.concatenated;
import static org.djlx.collectives.CaseInputs.empty;
import static org.djlx.collectives.CaseInputs.inputs;
import static org.djlx.collectives.CaseInputs.seed;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import org.djlx.collectives.ContractCases.Case;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/** Operations that move tensors among all ranks. */
final class MovementCases {

    private MovementCases() {}

    static Map<String, Case> all() {
        Map<String, Case> cases = new LinkedHashMap<>();
        cases.put("broadcast", MovementCases::broadcast);
        cases.put("conjugated", MovementCases::conjugated);
        cases.put("allGather", MovementCases::allGather);
        cases.put("allGatherUneven", MovementCases::allGatherUneven);
        cases.put("allGatherIntoTensor", MovementCases::allGatherIntoTensor);
        cases.put("allGatherInPlace", MovementCases::allGatherInPlace);
        cases.put("gather", MovementCases::gather);
        cases.put("gatherInPlace", MovementCases::gatherInPlace);
        cases.put("scatter", MovementCases::scatter);
        cases.put("scatterInPlace", MovementCases::scatterInPlace);
        cases.put("allToAll", MovementCases::allToAll);
        cases.put("allToAllSingle", MovementCases::allToAllSingle);
        cases.put("allToAllSplits", MovementCases::allToAllSplits);
        cases.put("allToAllStrided", MovementCases::allToAllStrided);
        return cases;
    }

    private static void broadcast(ProcessGroup group, NDManager manager) {
        for (ScalarType type : MOVED) {
            for (int count : COUNTS) {
                for (int root = 0; root < group.worldSize(); root++) {
                    Shape shape = new Shape(count);
                    NDArray tensor =
                            TestArrays.random(manager, type, shape, seed(group.rank(), root));
                    NDArray sent = TestArrays.random(manager, type, shape, seed(root, root));
                    group.broadcast(tensor, root).await();
                    assertArrayEquals(TestArrays.values(sent), TestArrays.values(tensor));
                    tensor.close();
                    sent.close();
                }
            }
        }
        NDArray strided =
                TestArrays.randomStrided(
                        manager, ScalarType.FLOAT32, new Shape(6, 5), seed(group.rank(), 3));
        int root = group.worldSize() - 1;
        double[] sent = inputs(group, manager, ScalarType.FLOAT32, new Shape(6, 5), 3)[root];
        group.broadcast(strided, root).await();
        assertArrayEquals(sent, TestArrays.values(strided));
    }

    /** libtorch conjugates lazily: until then the memory holds the unconjugated values. */
    private static void conjugated(ProcessGroup group, NDManager manager) {
        int n = group.worldSize();
        NDArray own = manager.create(new float[] {1, 2, 3, group.rank() + 1}, new Shape(2, 2));
        NDArray input = own.complex().conj();
        NDArray gathered = manager.zeros(new Shape(2L * n, 2)).complex();
        group.allGatherIntoTensor(gathered, input).await();
        for (int rank = 0; rank < n; rank++) {
            float[] expected = {1, -2, 3, -rank - 1};
            String rows = 2 * rank + ":" + (2 * rank + 2);
            assertArrayEquals(expected, gathered.real().get(rows).toFloatArray());
        }
        group.broadcast(input, n - 1).await();
        assertArrayEquals(new float[] {1, -2, 3, -n}, input.real().toFloatArray());
        group.allGatherCoalesced(List.of(gathered), List.of(input)).await();
        assertArrayEquals(new float[] {1, -2, 3, -n}, gathered.real().get(":2").toFloatArray());
    }

    private static void allGather(ProcessGroup group, NDManager manager) {
        for (ScalarType type : MOVED) {
            for (int count : COUNTS) {
                Shape shape = new Shape(count, 1);
                double[][] inputs = inputs(group, manager, type, shape, 5);
                NDArray input = TestArrays.random(manager, type, shape, seed(group.rank(), 5));
                List<NDArray> outputs = empty(manager, type, shape, group.worldSize());
                group.allGather(outputs, input).await();
                for (int rank = 0; rank < group.worldSize(); rank++) {
                    assertArrayEquals(inputs[rank], TestArrays.values(outputs.get(rank)));
                }
                outputs.forEach(NDArray::close);
                input.close();
            }
        }
        // Neither the input nor the outputs contiguous.
        Shape shape = new Shape(4, 6);
        NDArray input =
                TestArrays.randomStrided(manager, ScalarType.INT32, shape, seed(group.rank(), 6));
        List<NDArray> outputs =
                IntStream.range(0, group.worldSize())
                        .mapToObj(i -> manager.zeros(new Shape(6, 4), input.getDataType()))
                        .map(NDArray::transpose)
                        .toList();
        group.allGather(outputs, input).await();
        double[][] inputs = inputs(group, manager, ScalarType.INT32, shape, 6);
        for (int rank = 0; rank < group.worldSize(); rank++) {
            assertArrayEquals(inputs[rank], TestArrays.values(outputs.get(rank)));
        }
    }

    /** Rank r has r + 1 rows, rank 1 none. */
    private static void allGatherUneven(ProcessGroup group, NDManager manager) {
        for (ScalarType type : MOVED) {
            List<NDArray> outputs = new ArrayList<>();
            List<double[]> expected = new ArrayList<>();
            for (int rank = 0; rank < group.worldSize(); rank++) {
                Shape shape = new Shape(rank == 1 ? 0 : rank + 1, 5);
                outputs.add(Torch.empty(manager, shape, type));
                NDArray theirs = TestArrays.random(manager, type, shape, seed(rank, 7));
                expected.add(TestArrays.values(theirs));
            }
            Shape own = outputs.get(group.rank()).getShape();
            NDArray input = TestArrays.random(manager, type, own, seed(group.rank(), 7));
            group.allGather(outputs, input).await();
            for (int rank = 0; rank < group.worldSize(); rank++) {
                assertArrayEquals(expected.get(rank), TestArrays.values(outputs.get(rank)));
            }
        }
    }

    private static void allGatherIntoTensor(ProcessGroup group, NDManager manager) {
        int worldSize = group.worldSize();
        for (ScalarType type : MOVED) {
            for (int count : COUNTS) {
                Shape shape = new Shape(count, 2);
                double[][] inputs = inputs(group, manager, type, shape, 8);
                NDArray input = TestArrays.random(manager, type, shape, seed(group.rank(), 8));
                // Concatenated, then stacked.
                for (Shape whole :
                        List.of(new Shape(worldSize * count, 2), new Shape(worldSize, count, 2))) {
                    NDArray output = Torch.empty(manager, whole, type);
                    group.allGatherIntoTensor(output, input).await();
                    assertArrayEquals(concatenated(inputs), TestArrays.values(output));
                    output.close();
                }
                input.close();
            }
        }
    }

    private static void allGatherInPlace(ProcessGroup group, NDManager manager) {
        int rows = 30_000;
        Shape shape = new Shape(rows);
        double[][] inputs = inputs(group, manager, ScalarType.FLOAT32, shape, 9);
        NDArray output =
                Torch.empty(
                        manager, new Shape((long) group.worldSize() * rows), ScalarType.FLOAT32);
        NDArray slice = output.get(rows * group.rank() + ":" + rows * (group.rank() + 1));
        Torch.copy(
                slice,
                TestArrays.random(manager, ScalarType.FLOAT32, shape, seed(group.rank(), 9)));
        group.allGatherIntoTensor(output, slice).await();
        assertArrayEquals(concatenated(inputs), TestArrays.values(output));
    }

    private static void gather(ProcessGroup group, NDManager manager) {
        for (ScalarType type : MOVED) {
            for (int count : COUNTS) {
                Shape shape = new Shape(count);
                int root = count % group.worldSize();
                double[][] inputs = inputs(group, manager, type, shape, 11);
                NDArray input = TestArrays.random(manager, type, shape, seed(group.rank(), 11));
                if (group.rank() == root) {
                    List<NDArray> outputs = empty(manager, type, shape, group.worldSize());
                    Work work = group.gather(outputs, input, root);
                    work.await();
                    assertEquals(outputs, work.result());
                    for (int rank = 0; rank < group.worldSize(); rank++) {
                        assertArrayEquals(inputs[rank], TestArrays.values(outputs.get(rank)));
                    }
                    outputs.forEach(NDArray::close);
                } else {
                    Work work = group.gather(null, input, root);
                    work.await();
                    assertTrue(work.result().isEmpty());
                }
                input.close();
            }
        }
    }

    private static void gatherInPlace(ProcessGroup group, NDManager manager) {
        Shape shape = new Shape(70_000);
        ScalarType type = ScalarType.INT32;
        double[][] inputs = inputs(group, manager, type, shape, 12);
        NDArray input = TestArrays.random(manager, type, shape, seed(group.rank(), 12));
        int root = group.worldSize() - 1;
        List<NDArray> outputs = null;
        if (group.rank() == root) {
            outputs = new ArrayList<>(empty(manager, type, shape, root));
            outputs.add(input);
        }
        group.gather(outputs, input, root).await();
        for (int rank = 0; outputs != null && rank < group.worldSize(); rank++) {
            assertArrayEquals(inputs[rank], TestArrays.values(outputs.get(rank)));
        }
    }

    /**
     * The number of elements from rank {@code from} to rank {@code to}, different for each pair.
     */
    private static NDArray message(
            NDManager manager, ScalarType type, Shape shape, int from, int to) {
        return TestArrays.random(manager, type, shape, 31L * from + 1000L * to + 7);
    }

    private static void assertMessage(NDArray expected, NDArray actual) {
        assertArrayEquals(TestArrays.values(expected), TestArrays.values(actual));
    }

    private static List<NDArray> messages(
            ProcessGroup group, NDManager manager, ScalarType type, Shape shape, int from) {
        return IntStream.range(0, group.worldSize())
                .mapToObj(to -> message(manager, type, shape, from, to))
                .toList();
    }

    private static void scatter(ProcessGroup group, NDManager manager) {
        for (ScalarType type : MOVED) {
            for (int count : COUNTS) {
                Shape shape = new Shape(count);
                int root = (count + 1) % group.worldSize();
                List<NDArray> inputs =
                        group.rank() == root ? messages(group, manager, type, shape, root) : null;
                NDArray output = Torch.empty(manager, shape, type);
                group.scatter(output, inputs, root).await();
                assertMessage(message(manager, type, shape, root, group.rank()), output);
            }
        }
    }

    private static void scatterInPlace(ProcessGroup group, NDManager manager) {
        Shape shape = new Shape(70_000);
        ScalarType type = ScalarType.FLOAT32;
        int root = group.worldSize() - 1;
        List<NDArray> inputs =
                group.rank() == root ? messages(group, manager, type, shape, root) : null;
        NDArray output =
                inputs == null
                        ? TestArrays.randomStrided(manager, type, shape, 1)
                        : inputs.get(root);
        group.scatter(output, inputs, root).await();
        assertMessage(message(manager, type, shape, root, group.rank()), output);
    }

    /** The size of the tensor from one rank to another: some empty, one with several chunks. */
    private static int size(int from, int to) {
        int sum = 3 * from + to;
        return sum % 4 == 0 ? 0 : sum == 1 ? 50_001 : 10 * sum;
    }

    private static void allToAll(ProcessGroup group, NDManager manager) {
        int self = group.rank();
        for (ScalarType type : MOVED) {
            List<NDArray> inputs = new ArrayList<>();
            List<NDArray> outputs = new ArrayList<>();
            for (int peer = 0; peer < group.worldSize(); peer++) {
                Shape sent = new Shape(size(self, peer));
                inputs.add(message(manager, type, sent, self, peer));
                // Another shape of as many elements.
                Shape received = new Shape(1, size(peer, self));
                outputs.add(Torch.empty(manager, received, type));
            }
            group.allToAll(outputs, inputs).await();
            for (int peer = 0; peer < group.worldSize(); peer++) {
                Shape received = new Shape(size(peer, self));
                assertMessage(message(manager, type, received, peer, self), outputs.get(peer));
            }
        }
    }

    private static void allToAllSingle(ProcessGroup group, NDManager manager) {
        int n = group.worldSize();
        for (ScalarType type : MOVED) {
            for (int rows : new int[] {0, 1, 7, 20_003}) {
                Shape whole = new Shape((long) n * rows, 1);
                double[][] inputs = inputs(group, manager, type, whole, 14);
                NDArray input = TestArrays.random(manager, type, whole, seed(group.rank(), 14));
                NDArray output = Torch.empty(manager, whole, type);
                group.allToAllSingle(output, input).await();
                double[][] parts = new double[n][];
                for (int peer = 0; peer < n; peer++) {
                    parts[peer] =
                            Arrays.copyOfRange(
                                    inputs[peer], group.rank() * rows, (group.rank() + 1) * rows);
                }
                assertArrayEquals(concatenated(parts), TestArrays.values(output));
                input.close();
                output.close();
            }
        }
    }

    private static void allToAllSplits(ProcessGroup group, NDManager manager) {
        allToAllSplits(group, manager, false);
    }

    private static void allToAllStrided(ProcessGroup group, NDManager manager) {
        allToAllSplits(group, manager, true);
    }

    private static void allToAllSplits(ProcessGroup group, NDManager manager, boolean strided) {
        int self = group.rank();
        int n = group.worldSize();
        ScalarType type = ScalarType.FLOAT32;
        long[] sent = IntStream.range(0, n).mapToLong(to -> size(self, to)).toArray();
        long[] received = IntStream.range(0, n).mapToLong(from -> size(from, self)).toArray();
        Shape in = new Shape(Arrays.stream(sent).sum(), 2);
        Shape out = new Shape(Arrays.stream(received).sum(), 2);
        NDArray input =
                strided
                        ? TestArrays.randomStrided(manager, type, in, self)
                        : TestArrays.random(manager, type, in, self);
        NDArray output =
                strided
                        ? TestArrays.randomStrided(manager, type, out, 1)
                        : Torch.empty(manager, out, type);
        group.allToAllSingle(output, input, received, sent).await();
        double[][] parts = new double[n][];
        for (int peer = 0; peer < n; peer++) {
            int from = peer;
            int before = IntStream.range(0, self).map(to -> size(from, to)).sum();
            int all = IntStream.range(0, n).map(to -> size(from, to)).sum();
            double[] theirs =
                    TestArrays.values(TestArrays.random(manager, type, new Shape(all, 2), peer));
            parts[peer] = Arrays.copyOfRange(theirs, 2 * before, 2 * (before + size(peer, self)));
        }
        assertArrayEquals(concatenated(parts), TestArrays.values(output));
    }
}
