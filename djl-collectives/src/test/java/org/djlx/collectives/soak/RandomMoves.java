// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.soak;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.stream.IntStream;
import org.djlx.collectives.TestArrays;
import org.djlx.collectives.Work;
import org.djlx.collectives.soak.RandomCall.Issued;
import org.djlx.collectives.soak.RandomCall.Kind;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/** Random calls of operations that move arrays among all ranks. */
final class RandomMoves {

    private RandomMoves() {}

    static Map<String, Kind> all() {
        Map<String, Kind> kinds = new LinkedHashMap<>();
        kinds.put("broadcast", RandomMoves::broadcast);
        kinds.put("allGather", RandomMoves::allGather);
        kinds.put("allGatherIntoTensor", RandomMoves::allGatherIntoTensor);
        kinds.put("allGatherInPlace", RandomMoves::allGatherInPlace);
        kinds.put("allGatherCoalesced", RandomMoves::allGatherCoalesced);
        kinds.put("gather", RandomMoves::gather);
        kinds.put("scatter", RandomMoves::scatter);
        kinds.put("allToAll", RandomMoves::allToAll);
        kinds.put("allToAllSingle", RandomMoves::allToAllSingle);
        kinds.put("allToAllSplits", RandomMoves::allToAllSplits);
        return kinds;
    }

    private static List<NDArray> arrays(List<PlacedArray> placed) {
        return placed.stream().map(PlacedArray::array).toList();
    }

    private static List<PlacedArray> outputs(RandomCall call, ScalarType type, Shape shape) {
        return IntStream.range(0, call.worldSize())
                .mapToObj(i -> call.output(type, shape))
                .toList();
    }

    private static double[] concatenated(double[][] parts) {
        return Arrays.stream(parts).flatMapToDouble(Arrays::stream).toArray();
    }

    private static Issued broadcast(RandomCall call) {
        ScalarType type = call.type();
        Shape shape = call.shape();
        int root = call.anyRank();
        PlacedArray tensor = call.array(type, shape, call.rank(), 0);
        Work work = call.group().broadcast(tensor.array(), root);
        return new Issued(
                work,
                () -> assertArrayEquals(call.values(type, shape, root, 0), tensor.checkedValues()));
    }

    private static void checkEach(
            RandomCall call, ScalarType type, Shape shape, List<PlacedArray> outputs) {
        for (int rank = 0; rank < outputs.size(); rank++) {
            assertArrayEquals(call.values(type, shape, rank, 0), outputs.get(rank).checkedValues());
        }
    }

    private static Issued allGather(RandomCall call) {
        ScalarType type = call.type();
        Shape shape = call.shape();
        PlacedArray input = call.array(type, shape, call.rank(), 0);
        List<PlacedArray> outputs = outputs(call, type, shape);
        Work work = call.group().allGather(arrays(outputs), input.array());
        call.release(input);
        return new Issued(work, () -> checkEach(call, type, shape, outputs));
    }

    /** Where the arrays of all ranks go: one after the other, or stacked. */
    private static Shape whole(RandomCall call, Shape part) {
        if (part.dimension() == 0 || call.common().nextBoolean()) {
            return new Shape(call.worldSize()).addAll(part);
        }
        long[] sizes = part.getShape().clone();
        sizes[0] *= call.worldSize();
        return new Shape(sizes);
    }

    private static Issued allGatherIntoTensor(RandomCall call) {
        ScalarType type = call.type();
        Shape shape = call.shape();
        PlacedArray input = call.array(type, shape, call.rank(), 0);
        PlacedArray output = call.output(type, whole(call, shape));
        Work work = call.group().allGatherIntoTensor(output.array(), input.array());
        call.release(input);
        return new Issued(
                work,
                () ->
                        assertArrayEquals(
                                concatenated(call.values(type, shape, 0)), output.checkedValues()));
    }

    /** The input is this rank's part of the output. */
    private static Issued allGatherInPlace(RandomCall call) {
        ScalarType type = call.type();
        int count = 1 + (int) call.shape().size();
        Shape shape = new Shape(count);
        NDArray output =
                Torch.empty(call.manager(), new Shape((long) call.worldSize() * count), type);
        int from = call.rank() * count;
        NDArray input = output.get(from + ":" + (from + count));
        try (NDArray values =
                TestArrays.of(
                        call.manager(), type, shape, call.values(type, shape, call.rank(), 0))) {
            Torch.copy(input, values);
        }
        Work work = call.group().allGatherIntoTensor(output, input);
        return new Issued(
                work,
                () ->
                        assertArrayEquals(
                                concatenated(call.values(type, shape, 0)),
                                TestArrays.values(output)));
    }

    private static Issued allGatherCoalesced(RandomCall call) {
        List<NDArray> inputs = new ArrayList<>();
        List<NDArray> outputs = new ArrayList<>();
        List<Runnable> checks = new ArrayList<>();
        for (int i = 1 + call.common().nextInt(8); i > 0; i--) {
            ScalarType type = call.type();
            Shape shape = call.shape();
            int part = i;
            inputs.add(call.array(type, shape, call.rank(), part).array());
            PlacedArray output = call.output(type, whole(call, shape));
            outputs.add(output.array());
            checks.add(
                    () ->
                            assertArrayEquals(
                                    concatenated(call.values(type, shape, part)),
                                    output.checkedValues()));
        }
        Work work = call.group().allGatherCoalesced(outputs, inputs);
        return new Issued(work, () -> checks.forEach(Runnable::run));
    }

    private static Issued gather(RandomCall call) {
        ScalarType type = call.type();
        Shape shape = call.shape();
        int root = call.anyRank();
        PlacedArray input = call.array(type, shape, call.rank(), 0);
        List<PlacedArray> outputs =
                call.rank() == root ? outputs(call, type, shape) : List.<PlacedArray>of();
        Work work =
                call.group()
                        .gather(call.rank() == root ? arrays(outputs) : null, input.array(), root);
        call.release(input);
        return new Issued(work, () -> checkEach(call, type, shape, outputs));
    }

    private static Issued scatter(RandomCall call) {
        ScalarType type = call.type();
        Shape shape = call.shape();
        int root = call.anyRank();
        List<NDArray> inputs = null;
        if (call.rank() == root) {
            inputs = new ArrayList<>();
            for (int part = 0; part < call.worldSize(); part++) {
                inputs.add(call.array(type, shape, root, part).array());
            }
        }
        PlacedArray output = call.output(type, shape);
        Work work = call.group().scatter(output.array(), inputs, root);
        return new Issued(
                work,
                () ->
                        assertArrayEquals(
                                call.values(type, shape, root, call.rank()),
                                output.checkedValues()));
    }

    /** How much each rank has for each, {@code [from][to]}, the same on all ranks. */
    private static int[][] sizes(RandomCall call, int most) {
        Random common = call.common();
        int[][] sizes = new int[call.worldSize()][call.worldSize()];
        for (int[] row : sizes) {
            Arrays.setAll(row, to -> common.nextInt(4) == 0 ? 0 : common.nextInt(most));
        }
        return sizes;
    }

    private static Issued allToAll(RandomCall call) {
        ScalarType type = call.type();
        int[][] sizes = sizes(call, 1 + (int) call.shape().size());
        int self = call.rank();
        List<NDArray> inputs = new ArrayList<>();
        List<PlacedArray> outputs = new ArrayList<>();
        for (int peer = 0; peer < call.worldSize(); peer++) {
            inputs.add(call.array(type, new Shape(sizes[self][peer]), self, peer).array());
            outputs.add(call.output(type, new Shape(sizes[peer][self], 1)));
        }
        Work work = call.group().allToAll(arrays(outputs), inputs);
        return new Issued(
                work,
                () -> {
                    for (int peer = 0; peer < call.worldSize(); peer++) {
                        assertArrayEquals(
                                call.values(type, new Shape(sizes[peer][self]), peer, self),
                                outputs.get(peer).checkedValues());
                    }
                });
    }

    private static Issued allToAllSingle(RandomCall call) {
        int rows = call.common().nextInt(20);
        int[][] sizes = new int[call.worldSize()][call.worldSize()];
        for (int[] row : sizes) {
            Arrays.fill(row, rows);
        }
        return allToAllSingle(call, sizes, false);
    }

    private static Issued allToAllSplits(RandomCall call) {
        return allToAllSingle(call, sizes(call, 20), true);
    }

    private static Issued allToAllSingle(RandomCall call, int[][] rows, boolean split) {
        ScalarType type = call.type();
        int n = call.worldSize();
        int self = call.rank();
        int width = 1 + call.common().nextInt(30);
        long[] sent = IntStream.range(0, n).mapToLong(to -> rows[self][to]).toArray();
        long[] received = IntStream.range(0, n).mapToLong(from -> rows[from][self]).toArray();
        Shape in = new Shape(Arrays.stream(sent).sum(), width);
        PlacedArray input = call.array(type, in, self, 0);
        PlacedArray output = call.output(type, new Shape(Arrays.stream(received).sum(), width));
        Work work =
                split
                        ? call.group().allToAllSingle(output.array(), input.array(), received, sent)
                        : call.group().allToAllSingle(output.array(), input.array());
        call.release(input);
        return new Issued(
                work,
                () -> {
                    double[][] parts = new double[n][];
                    for (int from = 0; from < n; from++) {
                        Shape whole = new Shape(Arrays.stream(rows[from]).sum(), width);
                        int begin = Arrays.stream(rows[from], 0, self).sum();
                        parts[from] =
                                Arrays.copyOfRange(
                                        call.values(type, whole, from, 0),
                                        begin * width,
                                        (begin + rows[from][self]) * width);
                    }
                    assertArrayEquals(concatenated(parts), output.checkedValues());
                });
    }
}
