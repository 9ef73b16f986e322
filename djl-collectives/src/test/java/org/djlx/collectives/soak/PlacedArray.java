// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.soak;

import static org.junit.jupiter.api.Assertions.assertEquals;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.Arrays;
import java.util.Random;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import java.util.stream.LongStream;
import org.djlx.collectives.TestArrays;
import org.djlx.nativeops.torch.ScalarType;

/**
 * An array in a random place of a larger one: all of it, or a slice, or the transpose of a slice.
 * What surrounds it must stay as it was.
 */
final class PlacedArray {

    private final NDArray base;
    private final NDArray array;
    private final boolean[] inside; // of each element of the base, whether it is one of the array
    private final double[] before; // the base's elements

    private PlacedArray(NDArray base, NDArray array, boolean[] inside, double[] before) {
        this.base = base;
        this.array = array;
        this.inside = inside;
        this.before = before;
    }

    /** Creates an array with random elements, those of {@link #values} of the same seed. */
    static PlacedArray random(
            NDManager manager, ScalarType type, Shape shape, long seed, Random layout) {
        return of(manager, type, shape, values(manager, type, shape, seed), layout);
    }

    /** Creates an array for an output, with elements that no operation is to leave there. */
    static PlacedArray output(NDManager manager, ScalarType type, Shape shape, Random layout) {
        double[] values = new double[(int) shape.size()];
        Arrays.fill(values, 1);
        return of(manager, type, shape, values, layout);
    }

    /** The elements of {@link #random}, in double precision. */
    static double[] values(NDManager manager, ScalarType type, Shape shape, long seed) {
        try (NDArray array = TestArrays.random(manager, type, shape, seed)) {
            return TestArrays.values(array);
        }
    }

    private static PlacedArray of(
            NDManager manager, ScalarType type, Shape shape, double[] values, Random layout) {
        int dimensions = shape.dimension();
        boolean sliced = layout.nextInt(3) == 0 && values.length > 0;
        boolean transposed = dimensions > 1 && layout.nextInt(3) == 0;
        long[] sizes = shape.getShape().clone();
        // Each dimension of the base, in the order of the array's.
        int[] before = new int[dimensions];
        long[] padded = new long[dimensions];
        for (int i = 0; i < dimensions; i++) {
            before[i] = sliced ? layout.nextInt(3) : 0;
            padded[i] = sizes[i] + before[i] + (sliced ? layout.nextInt(3) : 0);
        }
        if (dimensions == 0) {
            before = new int[] {sliced ? layout.nextInt(3) : 0};
            padded = new long[] {before[0] + 1};
            sizes = new long[] {1};
        }
        int last = Math.max(0, dimensions - 1);
        long[] baseSizes = padded.clone();
        if (transposed) {
            baseSizes[0] = padded[last];
            baseSizes[last] = padded[0];
        }
        int count = (int) LongStream.of(baseSizes).reduce(1, Math::multiplyExact);
        double[] all = new double[count];
        boolean[] inside = new boolean[count];
        for (int i = 0; i < count; i++) {
            all[i] = i % 2; // Of any type.
        }
        long[] strides = strides(baseSizes);
        if (transposed) {
            long first = strides[0];
            strides[0] = strides[last];
            strides[last] = first;
        }
        for (int i = 0; i < values.length; i++) {
            int rest = i;
            int place = 0;
            for (int d = sizes.length - 1; d >= 0; d--) {
                place += (int) ((before[d] + rest % sizes[d]) * strides[d]);
                rest = (int) (rest / sizes[d]);
            }
            all[place] = values[i];
            inside[place] = true;
        }
        NDArray base = TestArrays.of(manager, type, new Shape(baseSizes), all);
        NDArray array = transposed ? base.swapAxes(0, last) : base;
        if (dimensions == 0) {
            array = array.get("" + before[0]);
        } else if (sliced) {
            int[] from = before;
            long[] to = sizes;
            array =
                    array.get(
                            IntStream.range(0, dimensions)
                                    .mapToObj(d -> from[d] + ":" + (from[d] + to[d]))
                                    .collect(Collectors.joining(", ")));
        }
        assertEquals(shape, array.getShape());
        return new PlacedArray(base, array, inside, TestArrays.values(base));
    }

    private static long[] strides(long[] sizes) {
        long[] strides = new long[sizes.length];
        long stride = 1;
        for (int d = sizes.length - 1; d >= 0; d--) {
            strides[d] = stride;
            stride *= sizes[d];
        }
        return strides;
    }

    NDArray array() {
        return array;
    }

    /** The array's elements now; fails if something around it has changed. */
    double[] checkedValues() {
        double[] now = TestArrays.values(base);
        for (int i = 0; i < now.length; i++) {
            if (!inside[i]) {
                int element = i;
                assertEquals(before[i], now[i], () -> "beside the array, at " + element);
            }
        }
        return TestArrays.values(array);
    }

    void close() {
        array.close();
        base.close();
    }
}
