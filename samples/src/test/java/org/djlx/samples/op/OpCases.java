// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.op;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.function.BiConsumer;
import java.util.function.IntToDoubleFunction;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.djlx.collectives.ReduceOp;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Runs every operation of {@code op} from files to files, and compares with plain Java. */
@Timeout(120)
abstract class OpCases {

    private final String backend;
    private final int ranks;
    private OpRunner op;

    OpCases(String backend, int ranks) {
        this.backend = backend;
        this.ranks = ranks;
    }

    @BeforeEach
    void open() {
        op = new OpRunner(backend, ranks);
    }

    @AfterEach
    void close() throws IOException {
        op.close();
    }

    final OpRunner op() {
        return op;
    }

    final int ranks() {
        return ranks;
    }

    final void runs(String command) {
        assertEquals(0, op.run(command.split(" ")), op::err);
    }

    final void write(String name, NDArray... arrays) {
        op.write(name, arrays);
    }

    final NDList read(String name) {
        return op.read(name);
    }

    final NDArray array(Shape shape, IntToDoubleFunction value) {
        return op.array(shape, value);
    }

    /** Returns small integers that encode rank and index. */
    static double value(int rank, int i) {
        return (rank + 1) * (i % 7 + 1) + i % 3;
    }

    /** Writes a file with one array for each rank, in-0.npz and so on. */
    private void writeInputs(long... sizes) {
        for (int rank = 0; rank < ranks; rank++) {
            int self = rank;
            write("in-" + rank + ".npz", array(new Shape(sizes), i -> value(self, i)));
        }
    }

    static void check(NDArray actual, Shape shape, IntToDoubleFunction expected) {
        assertEquals(shape, actual.getShape());
        double[] values = IntStream.range(0, (int) shape.size()).mapToDouble(expected).toArray();
        double[] found = actual.toType(DataType.FLOAT64, false).toDoubleArray();
        assertArrayEquals(values, found, 1e-4, () -> Arrays.toString(found));
    }

    private IntStream all() {
        return IntStream.range(0, ranks);
    }

    private double sum(int i) {
        return all().mapToDouble(rank -> value(rank, i)).sum();
    }

    private void checkEach(Shape shape, IntToDoubleFunction expected) {
        for (int rank = 0; rank < ranks; rank++) {
            NDList results = read("out-" + rank + ".npz");
            assertEquals(1, results.size());
            check(results.get(0), shape, expected);
        }
    }

    @ParameterizedTest
    @EnumSource(
            value = ReduceOp.Kind.class,
            names = {"SUM", "AVG", "PRODUCT", "MIN", "MAX"})
    void allReduce(ReduceOp.Kind op) {
        writeInputs(2, 5);
        runs("allReduce --reduce " + op + " --input in-{rank}.npz --output out-{rank}.npz");
        checkEach(
                new Shape(2, 5),
                i -> {
                    double[] values = all().mapToDouble(rank -> value(rank, i)).toArray();
                    return switch (op) {
                        case SUM -> Arrays.stream(values).sum();
                        case AVG -> Arrays.stream(values).average().orElseThrow();
                        case PRODUCT -> Arrays.stream(values).reduce(1, (a, b) -> a * b);
                        case MIN -> Arrays.stream(values).min().orElseThrow();
                        default -> Arrays.stream(values).max().orElseThrow();
                    };
                });
    }

    /** Runs an operation on two arrays of different shapes for each rank. */
    private void coalesced(
            String operation, Shape first, Shape second, BiConsumer<Integer, NDList> check) {
        for (int rank = 0; rank < ranks; rank++) {
            int self = rank;
            write(
                    "in-" + rank + ".npz",
                    array(first, i -> value(self, i)),
                    array(second, i -> value(self, i + 1)));
        }
        runs(operation + " --input in-{rank}.npz --output out-{rank}.npz");
        for (int rank = 0; rank < ranks; rank++) {
            NDList results = read("out-" + rank + ".npz");
            assertEquals(2, results.size());
            check.accept(rank, results);
        }
    }

    @Test
    void allReduceCoalesced() {
        coalesced(
                "allReduceCoalesced",
                new Shape(2, 3),
                new Shape(4),
                (rank, results) -> {
                    check(results.get(0), new Shape(2, 3), this::sum);
                    check(results.get(1), new Shape(4), i -> sum(i + 1));
                });
    }

    @Test
    void allGatherCoalesced() {
        coalesced(
                "allGatherCoalesced",
                new Shape(2, 3),
                new Shape(4),
                (rank, results) -> {
                    check(results.get(0), new Shape(2L * ranks, 3), i -> value(i / 6, i % 6));
                    check(results.get(1), new Shape(4L * ranks), i -> value(i / 4, i % 4 + 1));
                });
    }

    @Test
    void reduceScatterCoalesced() {
        coalesced(
                "reduceScatterCoalesced",
                new Shape(2L * ranks, 3),
                new Shape(ranks),
                (rank, results) -> {
                    check(results.get(0), new Shape(2, 3), i -> sum(i + 6 * rank));
                    check(results.get(1), new Shape(1), i -> sum(i + rank + 1));
                });
    }

    @Test
    void allReduceWithAFactor() {
        writeInputs(5);
        runs(
                "allReduce --reduce PREMUL_SUM --factor 0.5 --input in-{rank}.npz --output"
                        + " out-{rank}.npz");
        checkEach(new Shape(5), i -> sum(i) / 2);
    }

    @Test
    void allReduceOfOneFileForAll() {
        write("in.npz", array(new Shape(5), i -> i));
        runs("allReduce --input in.npz --output out-{rank}.npz");
        checkEach(new Shape(5), i -> i * ranks);
    }

    @Test
    void reduceWritesOnTheRoot() {
        writeInputs(5);
        runs("reduce --root 1 --input in-{rank}.npz --output out-{rank}.npz");
        assertFalse(Files.exists(Path.of(op.path("out-0.npz"))));
        check(read("out-1.npz").get(0), new Shape(5), this::sum);
    }

    @Test
    void broadcastReadsOnTheRoot() {
        write("in-1.npz", array(new Shape(2, 3), i -> i));
        runs("broadcast --root 1 --input in-{rank}.npz --output out-{rank}.npz");
        checkEach(new Shape(2, 3), i -> i);
    }

    @Test
    void allGather() {
        writeInputs(2, 2);
        runs("allGather --input in-{rank}.npz --output out-{rank}.npz");
        for (int rank = 0; rank < ranks; rank++) {
            checkGathered(read("out-" + rank + ".npz"));
        }
    }

    private void checkGathered(NDList results) {
        assertEquals(ranks, results.size());
        for (int from = 0; from < ranks; from++) {
            int sender = from;
            check(results.get(from), new Shape(2, 2), i -> value(sender, i));
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"allGatherIntoTensor", "lowContentionAllGather"})
    void allGatherIntoTensor(String operation) {
        writeInputs(2, 3);
        runs(operation + " --input in-{rank}.npz --output out-{rank}.npz");
        checkEach(new Shape(2L * ranks, 3), i -> value(i / 6, i % 6));
    }

    @Test
    void allGatherIntoTensorOfScalars() {
        writeInputs();
        runs("allGatherIntoTensor --input in-{rank}.npz --output out-{rank}.npz");
        checkEach(new Shape(ranks), i -> value(i, 0));
    }

    @Test
    void gatherWritesOnTheRoot() {
        writeInputs(2, 2);
        runs("gather --input in-{rank}.npz --output out.npz");
        checkGathered(read("out.npz"));
    }

    @ParameterizedTest
    @ValueSource(ints = {0, 1})
    void scatterOfAList(int root) {
        NDArray[] list =
                all().mapToObj(to -> array(new Shape(4), i -> value(to, i)))
                        .toArray(NDArray[]::new);
        write("in.npz", list);
        runs("scatter --root " + root + " --input in.npz --output out-{rank}.npz");
        for (int rank = 0; rank < ranks; rank++) {
            int self = rank;
            check(read("out-" + rank + ".npz").get(0), new Shape(4), i -> value(self, i));
        }
    }

    @Test
    void scatterOfTheParts() {
        write("in.npz", array(new Shape(2, ranks), i -> i));
        runs("scatter --split -1 --input in.npz --output out-{rank}.npz");
        for (int rank = 0; rank < ranks; rank++) {
            int self = rank;
            check(read("out-" + rank + ".npz").get(0), new Shape(2, 1), i -> i * ranks + self);
        }
    }

    @Test
    void reduceScatter() {
        for (int rank = 0; rank < ranks; rank++) {
            int self = rank;
            write(
                    "in-" + rank + ".npz",
                    all().mapToObj(to -> array(new Shape(3), i -> value(self, i + 10 * to)))
                            .toArray(NDArray[]::new));
        }
        runs("reduceScatter --input in-{rank}.npz --output out-{rank}.npz");
        for (int rank = 0; rank < ranks; rank++) {
            int self = rank;
            check(read("out-" + rank + ".npz").get(0), new Shape(3), i -> sum(i + 10 * self));
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"reduceScatterTensor", "lowContentionReduceScatter"})
    void reduceScatterTensor(String operation) {
        writeInputs(2L * ranks, 3);
        runs(operation + " --input in-{rank}.npz --output out-{rank}.npz");
        for (int rank = 0; rank < ranks; rank++) {
            int self = rank;
            check(read("out-" + rank + ".npz").get(0), new Shape(2, 3), i -> sum(i + 6 * self));
        }
    }

    /** Rank r sends r + 1 rows and t columns to rank t. */
    @Test
    void allToAllOfDifferentShapes() {
        for (int rank = 0; rank < ranks; rank++) {
            int self = rank;
            write(
                    "in-" + rank + ".npz",
                    all().mapToObj(to -> array(new Shape(self + 1, to), i -> value(self, i + to)))
                            .toArray(NDArray[]::new));
        }
        runs("allToAll --input in-{rank}.npz --output out-{rank}.npz");
        for (int rank = 0; rank < ranks; rank++) {
            int self = rank;
            NDList results = read("out-" + rank + ".npz");
            assertEquals(ranks, results.size());
            for (int from = 0; from < ranks; from++) {
                int sender = from;
                Shape shape = new Shape(from + 1, rank);
                check(results.get(from), shape, i -> value(sender, i + self));
            }
        }
    }

    @Test
    void allToAllSingle() {
        writeInputs(ranks, 2);
        runs("allToAllSingle --input in-{rank}.npz --output out-{rank}.npz");
        for (int rank = 0; rank < ranks; rank++) {
            int self = rank;
            check(
                    read("out-" + rank + ".npz").get(0),
                    new Shape(ranks, 2),
                    i -> value(i / 2, i % 2 + 2 * self));
        }
    }

    @Test
    void barrier() {
        runs("barrier");
        assertEquals("barrier done, " + ranks + " ranks, backend " + backend + "\n", op.out());
    }

    @Test
    void resultsAreReported() {
        writeInputs(2, 3);
        runs("reduce --input in-{rank}.npz");
        String values =
                IntStream.range(0, 4)
                        .mapToObj(i -> Float.toString((float) sum(i)))
                        .collect(Collectors.joining(" "));
        assertEquals(
                List.of(
                        "reduce done, " + ranks + " ranks, backend " + backend,
                        "rank result shape type first values file",
                        " 0 arr_0 (2, 3) float32 " + values + " ... -"),
                op.out().lines().map(line -> line.replaceAll(" +", " ")).toList());
    }

    /** A is split by rows; each rank multiplies all of A with two matrices of its own. */
    @Test
    void allGatherMatmul() {
        Shape shape = new Shape(2L * ranks, 3);
        write("a.npz", array(shape, i -> value(0, i)));
        for (int rank = 0; rank < ranks; rank++) {
            int self = rank;
            write(
                    "b-" + rank + ".npz",
                    array(new Shape(3, 2), i -> value(self, i)),
                    array(new Shape(3, 1), i -> -value(self, i)));
        }
        runs(
                "allGatherMatmul --input a.npz --split 0 --b b-{rank}.npz --output"
                        + " out-{rank}.npz");
        for (int rank = 0; rank < ranks; rank++) {
            int self = rank;
            NDList results = read("out-" + rank + ".npz");
            check(named(results, "gathered"), shape, i -> value(0, i));
            check(
                    named(results, "product_0"),
                    new Shape(2L * ranks, 2),
                    i -> product(3, 2, i, a -> value(0, a), b -> value(self, b)));
            check(
                    named(results, "product_1"),
                    new Shape(2L * ranks, 1),
                    i -> product(3, 1, i, a -> value(0, a), b -> -value(self, b)));
        }
    }

    private static NDArray named(NDList results, String name) {
        NDArray array = results.get(name);
        assertNotNull(array, name);
        return array;
    }

    /** Element i of A B, with K columns of A and N of B. */
    private static double product(
            int k, int n, int i, IntToDoubleFunction a, IntToDoubleFunction b) {
        return IntStream.range(0, k)
                .mapToDouble(j -> a.applyAsDouble(i / n * k + j) * b.applyAsDouble(j * n + i % n))
                .sum();
    }

    /** A is split by columns, B by rows, the result by columns: (4, K) x (K, 2 W). */
    @ParameterizedTest
    @ValueSource(strings = {"SUM", "AVG"})
    void matmulReduceScatter(String op) {
        int inner = 3 * ranks;
        int columns = 2 * ranks;
        write("a.npz", array(new Shape(4, inner), i -> value(0, i)));
        write("b.npz", array(new Shape(inner, columns), i -> value(1, i)));
        runs(
                "matmulReduceScatter --input a.npz --split 1 --b b.npz --split-b 0 --dim 1"
                        + " --output out-{rank}.npz --reduce "
                        + op);
        for (int rank = 0; rank < ranks; rank++) {
            int first = 2 * rank;
            check(
                    named(read("out-" + rank + ".npz"), "product"),
                    new Shape(4, 2),
                    i ->
                            product(
                                            inner,
                                            columns,
                                            i / 2 * columns + first + i % 2,
                                            a -> value(0, a),
                                            b -> value(1, b))
                                    / (op.equals("AVG") ? ranks : 1));
        }
    }
}
