// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.c10d;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.Arrays;
import java.util.EnumMap;
import java.util.List;
import java.util.Map;
import java.util.function.IntFunction;
import java.util.stream.IntStream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.TestArrays;
import org.djlx.collectives.spi.Backends;
import org.djlx.collectives.spi.OpType;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.function.Executable;

/**
 * One rank of a group, and the tensors of PyTorch's tests: all elements are one value.
 *
 * @param scopes the group's sub-groups, created by the first row that needs them
 */
record Rank(ProcessGroup group, NDManager manager, Map<Scope, ProcessGroup> scopes) {

    Rank(ProcessGroup group, NDManager manager) {
        this(group, manager, new EnumMap<>(Scope.class));
    }

    /** The code of one rank. */
    @FunctionalInterface
    interface Body {
        void run(Rank rank);
    }

    /** A number that depends on rank and number of ranks. */
    @FunctionalInterface
    interface Value {
        double of(int rank, int ranks);
    }

    /** Runs a body only if the group has so many ranks. */
    static Body least(int ranks, Body body) {
        return rank -> {
            if (rank.n() >= ranks) {
                body.run(rank);
            }
        };
    }

    /** Runs a body only on CPUs: on GPUs a timeout breaks the group after its launch. */
    static Body cpu(Body body) {
        return rank -> {
            if (!rank.group.device().isGpu()) {
                body.run(rank);
            }
        };
    }

    int r() {
        return group.rank();
    }

    int n() {
        return group.worldSize();
    }

    int next() {
        return (r() + 1) % n();
    }

    int previous() {
        return (r() + n() - 1) % n();
    }

    /** A value of a rank of this group. */
    double of(Value value) {
        return value.of(r(), n());
    }

    NDArray full(ScalarType type, Shape shape, double value) {
        double[] parts = new double[type.real() == type ? 1 : 2];
        Arrays.fill(parts, 0);
        parts[0] = value;
        return full(type, shape, parts);
    }

    /** A tensor whose elements are all one number, given by its parts. */
    NDArray full(ScalarType type, Shape shape, double... parts) {
        double[] values = new double[parts.length * (int) shape.size()];
        for (int i = 0; i < values.length; i++) {
            values[i] = parts[i % parts.length];
        }
        return TestArrays.of(manager, type, shape, values);
    }

    NDArray full(double value, long... shape) {
        return full(ScalarType.FLOAT32, new Shape(shape), value);
    }

    /** A cube, PyTorch's {@code _build_tensor}. */
    NDArray cube(ScalarType type, int size, double value) {
        return full(type, new Shape(size, size, size), value);
    }

    /** A list with a tensor for each rank. */
    List<NDArray> each(IntFunction<NDArray> tensor) {
        return IntStream.range(0, n()).mapToObj(tensor).toList();
    }

    /** Asserts that all elements are one value, rounded to the type. */
    void all(double value, NDArray tensor) {
        ScalarType type = Torch.scalarType(tensor);
        double[] actual = TestArrays.values(tensor);
        double[] expected =
                TestArrays.values(full(type, new Shape(tensor.getShape().getShape()), value));
        same(expected, actual);
    }

    static void same(double[] expected, double[] actual) {
        assertEquals(Arrays.toString(expected), Arrays.toString(actual));
    }

    boolean supports(OpType type, ScalarType element, ReduceOp op) {
        return Backends.get(group.backendName()).support().supports(type, element, op);
    }

    /** Asserts that all ranks refuse a call before anything is sent. */
    void refuses(Executable call) {
        assertThrows(IllegalArgumentException.class, call);
    }
}
