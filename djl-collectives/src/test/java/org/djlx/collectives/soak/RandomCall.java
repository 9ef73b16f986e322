// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.soak;

import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.List;
import java.util.Random;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.djlx.collectives.CaseInputs;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.collectives.spi.Backends;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Support;
import org.djlx.nativeops.torch.ScalarType;

/**
 * One call of a random program on one rank: what all ranks choose alike, what each chooses for
 * itself, and the elements of every rank's arrays, which all ranks know.
 *
 * @param group the rank's handle
 * @param manager has the call's arrays; closed after the check
 * @param common gives the same numbers on all ranks
 * @param own gives other numbers on each rank
 * @param salt tells the elements of this call from those of others
 */
record RandomCall(ProcessGroup group, NDManager manager, Random common, Random own, long salt) {

    /** An operation under way: its works, and what checks their results once they have ended. */
    record Issued(List<Work> works, Runnable check) {

        Issued(Work work, Runnable check) {
            this(List.of(work), check);
        }
    }

    /** Issues a call of one kind. */
    @FunctionalInterface
    interface Kind {

        Issued issue(RandomCall call);
    }

    int rank() {
        return group.rank();
    }

    int worldSize() {
        return group.worldSize();
    }

    private Support support() {
        return Backends.get(group.backendName()).support();
    }

    /** Any of the elements of a list, the same on all ranks. */
    <T> T any(List<T> list) {
        return list.get(common.nextInt(list.size()));
    }

    int anyRank() {
        return common.nextInt(worldSize());
    }

    /** An element type that can be moved. */
    ScalarType type() {
        return any(real(support().types(OpType.BROADCAST, null).stream()));
    }

    /** Leaves out complex types, whose elements are two values; the contract suite has them. */
    private static List<ScalarType> real(Stream<ScalarType> types) {
        return types.filter(type -> type.real() == type).sorted().toList();
    }

    /** A reduction that the backend has. */
    ReduceOp op() {
        return any(
                CaseInputs.OPS.stream()
                        .filter(op -> !support().types(OpType.ALL_REDUCE, op.kind()).isEmpty())
                        .toList());
    }

    /** An element type that can be reduced. */
    ScalarType type(OpType operation, ReduceOp op) {
        return any(real(support().types(operation, op.kind()).stream().filter(op::isDefinedFor)));
    }

    /** A shape: mostly small, sometimes empty or a scalar, sometimes of several chunks. */
    Shape shape() {
        int dimensions = common.nextInt(5);
        int largest = any(List.of(1, 12, 12, 150, 150, 2_000, 2_000, 40_000));
        long[] sizes = new long[dimensions];
        long count = 1;
        for (int i = 0; i < dimensions; i++) {
            int most = (int) Math.max(1, largest / count);
            sizes[i] = 1 + common.nextInt(i == dimensions - 1 ? most : Math.min(most, 40));
            count *= sizes[i];
        }
        if (dimensions > 0 && common.nextInt(12) == 0) {
            sizes[common.nextInt(dimensions)] = 0;
        }
        return new Shape(sizes);
    }

    Shape vector() {
        return new Shape(shape().size());
    }

    private long seed(int rank, int part) {
        return salt + 10_007L * rank + 1_000_003L * part;
    }

    /** An array with what a rank has for a part of the call, in a place that this rank chooses. */
    PlacedArray array(ScalarType type, Shape shape, int rank, int part) {
        return PlacedArray.random(manager, type, shape, seed(rank, part), own);
    }

    /** An array for a result. */
    PlacedArray output(ScalarType type, Shape shape) {
        return PlacedArray.output(manager, type, shape, own);
    }

    /** The elements of {@link #array}, in double precision. */
    double[] values(ScalarType type, Shape shape, int rank, int part) {
        return PlacedArray.values(manager, type, shape, seed(rank, part));
    }

    /** The elements of all ranks' arrays. */
    double[][] values(ScalarType type, Shape shape, int part) {
        return IntStream.range(0, worldSize())
                .mapToObj(rank -> values(type, shape, rank, part))
                .toArray(double[][]::new);
    }

    /**
     * Closes an input while the operation may be under way, or leaves that to the manager: what is
     * under way keeps its arrays alive.
     */
    void release(PlacedArray input) {
        if (own.nextInt(3) == 0) {
            input.close();
        }
    }
}
