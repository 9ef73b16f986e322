// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.op;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.function.Function;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * One rank's call of an operation.
 *
 * @param group the group
 * @param manager the manager of the arrays, on the group's device
 * @param inputs this rank's inputs; empty if only the root has inputs
 * @param bs the right operands of matmuls
 * @param reduceOp how to reduce
 * @param root the root
 * @param dim the dimension along which a fused operator gathers or scatters
 */
record OpCall(
        ProcessGroup group,
        NDManager manager,
        List<NDArray> inputs,
        List<NDArray> bs,
        ReduceOp reduceOp,
        int root,
        int dim) {

    private static final int MAX_DIMENSIONS = 62;
    // A type and shape as longs: the element type, the number of dimensions, the sizes.
    private static final int DESCRIPTION = 2 + MAX_DIMENSIONS;

    NDArray input() {
        return inputs.get(0);
    }

    boolean isRoot() {
        return group.rank() == root;
    }

    /** Returns an uninitialised array of the input's element type. */
    NDArray result(Shape shape) {
        return Torch.empty(manager, shape, Torch.scalarType(input()));
    }

    /** Returns an uninitialised array for each rank, of the input's type and shape. */
    List<NDArray> results() {
        List<NDArray> results = new ArrayList<>();
        for (int rank = 0; rank < group.worldSize(); rank++) {
            results.add(result(input().getShape()));
        }
        return results;
    }

    /** Returns an uninitialised array for each input, of the input's type and the given shape. */
    List<NDArray> results(Function<NDArray, Shape> shape) {
        List<NDArray> results = new ArrayList<>();
        for (NDArray input : inputs) {
            results.add(Torch.empty(manager, shape.apply(input), Torch.scalarType(input)));
        }
        return results;
    }

    /**
     * Broadcasts the type and shape of the root's input; returns an array of that type and shape.
     */
    NDArray resultLikeRoots() {
        long[] description = isRoot() ? describe(input()) : new long[DESCRIPTION];
        try (NDArray numbers = manager.create(description)) {
            group.broadcast(numbers, root).await();
            return described(numbers.toLongArray(), 0);
        }
    }

    /** Exchanges the inputs' types and shapes; returns an array for the data from each rank. */
    List<NDArray> resultsLikeExchanged() {
        int worldSize = group.worldSize();
        long[] descriptions = new long[worldSize * DESCRIPTION];
        for (int rank = 0; rank < worldSize; rank++) {
            System.arraycopy(
                    describe(inputs.get(rank)), 0, descriptions, rank * DESCRIPTION, DESCRIPTION);
        }
        try (NDArray sent = manager.create(descriptions);
                NDArray received = manager.create(descriptions)) {
            group.allToAllSingle(received, sent).await();
            long[] numbers = received.toLongArray();
            List<NDArray> results = new ArrayList<>();
            for (int rank = 0; rank < worldSize; rank++) {
                results.add(described(numbers, rank * DESCRIPTION));
            }
            return results;
        }
    }

    private static long[] describe(NDArray array) {
        long[] sizes = Torch.sizes(array);
        if (sizes.length > MAX_DIMENSIONS) {
            throw new IllegalArgumentException(
                    String.format(
                            "an array has %s dimensions, more than %s",
                            sizes.length, MAX_DIMENSIONS));
        }
        long[] description = new long[DESCRIPTION];
        description[0] = Torch.scalarType(array).code();
        description[1] = sizes.length;
        System.arraycopy(sizes, 0, description, 2, sizes.length);
        return description;
    }

    private NDArray described(long[] numbers, int at) {
        int dimensions = (int) numbers[at + 1];
        long[] sizes = Arrays.copyOfRange(numbers, at + 2, at + 2 + dimensions);
        return Torch.empty(manager, new Shape(sizes), ScalarType.fromCode((int) numbers[at]));
    }
}
