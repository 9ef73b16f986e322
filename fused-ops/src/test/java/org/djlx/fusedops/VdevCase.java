// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Random;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.TestArrays;
import org.djlx.nativeops.torch.ScalarType;

/**
 * Random splits of all ranks, the same on every rank, and the expected results of an all-to-all.
 *
 * @param type the element type
 * @param row the shape of a row
 * @param experts the number of experts of each rank; 0 for the 1-D form
 * @param align the alignment of each expert's rows; 0 in the 1-D form
 * @param most the largest split; a third of the splits are 0
 * @param seed makes the splits
 */
record VdevCase(ScalarType type, Shape row, int experts, int align, int most, long seed) {

    private static final int SLACK = 3; // rows of the arrays that no call needs

    private int perRank() {
        return Math.max(1, experts);
    }

    /** Returns the splits of a rank. */
    long[] splits(int worldSize, int rank) {
        Random random = new Random(seed * 31 + rank);
        random.nextLong();
        return random.ints(worldSize * perRank(), 0, 3 * most + 3)
                .mapToLong(value -> value <= most ? 0 : value % (most + 1))
                .toArray();
    }

    private double value(int rank, long row, int column) {
        int bound = type == ScalarType.BOOL ? 2 : 97;
        return (rank * 41 + row * 13 + column * 5 + seed) % bound;
    }

    /** A row of a rank's input; null for a row that no rank sends. */
    private record Row(int rank, long number) {}

    /**
     * The expected output of a rank.
     *
     * @param rows the rows, with padding
     * @param splits the splits, then the offsets
     */
    private record Expected(List<Row> rows, long[] splits) {}

    private Expected expected(int worldSize, int rank) {
        int count = worldSize * perRank();
        List<Row> rows = new ArrayList<>();
        long[] splits = new long[2 * count];
        int chunk = 0;
        for (int expert = 0; expert < perRank(); expert++) {
            int begin = rows.size();
            for (int source = 0; source < worldSize; source++) {
                long[] sent = splits(worldSize, source);
                int index = rank * perRank() + expert;
                long first = Arrays.stream(sent, 0, index).sum();
                splits[chunk] = sent[index];
                splits[count + chunk++] = rows.size();
                for (long i = 0; i < sent[index]; i++) {
                    rows.add(new Row(source, first + i));
                }
            }
            while (align > 0 && (rows.size() == begin || (rows.size() - begin) % align != 0)) {
                rows.add(null);
            }
        }
        return new Expected(rows, splits);
    }

    private int columns() {
        return (int) row.size();
    }

    private double[] values(List<Row> rows) {
        double[] values = new double[(rows.size() + SLACK) * columns()];
        Arrays.fill(values, 1); // Rows beyond the received ones keep this value.
        for (int i = 0; i < rows.size(); i++) {
            for (int column = 0; rows.get(i) != null && column < columns(); column++) {
                Row of = rows.get(i);
                values[i * columns() + column] = value(of.rank(), of.number(), column);
            }
        }
        return values;
    }

    private NDArray array(NDManager manager, List<Row> rows) {
        Shape shape = new Shape(rows.size() + SLACK).addAll(row);
        return TestArrays.of(manager, type, shape, values(rows));
    }

    private static NDArray longs(NDManager manager, Shape shape, long... values) {
        double[] doubles = Arrays.stream(values).asDoubleStream().toArray();
        return TestArrays.of(manager, ScalarType.INT64, shape, doubles);
    }

    private static double[] doubles(long... values) {
        return Arrays.stream(values).asDoubleStream().toArray();
    }

    private static List<Row> unwritten(int rows) {
        return Collections.nCopies(rows, null);
    }

    /** The arrays of a rank. */
    final class Operands2d {

        final NDArray input;
        final NDArray output;
        final NDArray back;
        final NDArray inSplits;
        final NDArray outSplits;
        final NDArray backSplits;

        /** Makes arrays of the sizes that the splits need, or with more rows. */
        Operands2d(NDManager manager, int worldSize, int rank, int moreRows) {
            long[] splits = splits(worldSize, rank);
            List<Row> own = own(worldSize, rank);
            Shape two = new Shape(2, splits.length);
            input = array(manager, moreRows == 0 ? own : unwritten(own.size() + moreRows));
            int received = expected(worldSize, rank).rows.size();
            output = array(manager, unwritten(received + moreRows));
            back = array(manager, unwritten(own.size() + moreRows));
            inSplits = longs(manager, new Shape(splits.length), splits);
            outSplits = longs(manager, two, new long[2 * splits.length]);
            backSplits = longs(manager, two, new long[2 * splits.length]);
        }

        NDArray[] all() {
            return new NDArray[] {input, output, back, inSplits, outSplits, backSplits};
        }
    }

    private List<Row> own(int worldSize, int rank) {
        List<Row> own = new ArrayList<>();
        long sum = Arrays.stream(splits(worldSize, rank)).sum();
        for (long i = 0; i < sum; i++) {
            own.add(new Row(rank, i));
        }
        return own;
    }

    /** Issues the calls: in the 2-D form, there and back. */
    void issue(ProcessGroup group, Operands2d arrays) {
        if (experts == 0) {
            VariableAllToAll.allToAllVdev(
                            group, arrays.output, arrays.input, arrays.inSplits, arrays.outSplits)
                    .await();
            return;
        }
        VariableAllToAll.allToAllVdev2d(
                        group,
                        arrays.output,
                        arrays.input,
                        arrays.inSplits,
                        arrays.outSplits,
                        align)
                .await();
        VariableAllToAll.allToAllVdev2dOffset(
                        group, arrays.back, arrays.output, arrays.outSplits, arrays.backSplits)
                .await();
    }

    /** Checks the results of {@link #issue}. */
    void verify(int worldSize, int rank, Operands2d arrays) {
        Expected expected = expected(worldSize, rank);
        same(expected.splits, arrays.outSplits, "splits and offsets", rank);
        same(values(expected.rows), arrays.output, "output", rank);
        if (experts > 0) {
            long[] splits = splits(worldSize, rank);
            long[] back = Arrays.copyOf(splits, 2 * splits.length);
            for (int i = 1; i < splits.length; i++) {
                back[splits.length + i] = back[splits.length + i - 1] + splits[i - 1];
            }
            same(back, arrays.backSplits, "splits and offsets of the way back", rank);
            same(values(own(worldSize, rank)), arrays.back, "rows that came back", rank);
        }
    }

    private void same(long[] expected, NDArray actual, String what, int rank) {
        same(doubles(expected), actual, what, rank);
    }

    /** Compares the first rows; the array may be longer. */
    private void same(double[] expected, NDArray actual, String what, int rank) {
        double[] values = TestArrays.values(actual);
        double[] first = Arrays.copyOf(values, Math.min(values.length, expected.length));
        assertArrayEquals(expected, first, 0, () -> this + ", rank " + rank + ": " + what);
        for (int i = first.length; i < values.length; i++) {
            assertArrayEquals(new double[] {1}, new double[] {values[i]}, 0, this + ": after");
        }
    }

    void check(ProcessGroup group) {
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
            Operands2d arrays = new Operands2d(manager, group.worldSize(), group.rank(), 0);
            issue(group, arrays);
            verify(group.worldSize(), group.rank(), arrays);
        }
    }

    /** Cases of all element types, row lengths, forms and alignments. */
    static List<VdevCase> grid() {
        List<VdevCase> cases = new ArrayList<>();
        List<ScalarType> types =
                List.of(
                        ScalarType.FLOAT32,
                        ScalarType.BFLOAT16,
                        ScalarType.INT8,
                        ScalarType.INT64,
                        ScalarType.BOOL);
        for (ScalarType type : types) {
            for (Shape row : List.of(new Shape(), new Shape(3, 5), new Shape(32), new Shape(0))) {
                long seed = cases.size() + 1;
                cases.add(new VdevCase(type, row, 0, 0, 9, seed));
                cases.add(new VdevCase(type, row, 1, 0, 7, seed));
                cases.add(new VdevCase(type, row, 3, 0, 5, seed));
                cases.add(new VdevCase(type, row, 4, 8, 5, seed));
                cases.add(new VdevCase(type, row, 2, 1, 0, seed));
            }
        }
        Random random = new Random(5);
        for (int i = 0; i < 20; i++) {
            Shape row = new Shape(1 + random.nextInt(40));
            int experts = random.nextInt(9);
            int align = experts == 0 ? 0 : random.nextInt(20);
            int most = random.nextInt(30);
            cases.add(new VdevCase(ScalarType.FLOAT32, row, experts, align, most, i));
        }
        cases.add(new VdevCase(ScalarType.BFLOAT16, new Shape(8), 32, 16, 3, 7));
        return cases;
    }
}
