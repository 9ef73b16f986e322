// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.path;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.List;
import java.util.function.UnaryOperator;
import java.util.stream.IntStream;
import org.djlx.nativeops.cuda.MatrixLayout;
import org.djlx.nativeops.torch.TensorInfo;

/** Rearranges the dimensions of arrays, as views wherever possible. */
public final class Axes {

    private Axes() {}

    /**
     * Moves a dimension to another index, like torch.movedim. Other dimensions keep their order.
     */
    public static NDArray move(NDArray array, int from, int to) {
        if (from == to) {
            return array;
        }
        List<Integer> order =
                new ArrayList<>(IntStream.range(0, array.getShape().dimension()).boxed().toList());
        order.add(to, order.remove(from));
        return array.transpose(order.stream().mapToInt(i -> i).toArray());
    }

    public static Shape move(Shape shape, int from, int to) {
        if (from == to) {
            return shape;
        }
        List<Long> sizes =
                new ArrayList<>(
                        IntStream.range(0, shape.dimension()).mapToObj(shape::get).toList());
        sizes.add(to, sizes.remove(from));
        return new Shape(sizes);
    }

    /** Returns a contiguous array as a matrix: merges all dimensions except the last. */
    public static NDArray matrix(NDArray contiguous) {
        Shape shape = contiguous.getShape();
        return contiguous.reshape(rows(shape), shape.get(shape.dimension() - 1));
    }

    /** Returns the number of rows of {@link #matrix}. Does not divide: the last size may be 0. */
    public static long rows(Shape shape) {
        return shape.slice(0, shape.dimension() - 1).size();
    }

    /** Returns a shape with one size replaced. */
    public static Shape with(Shape shape, int dimension, long size) {
        long[] sizes = shape.getShape().clone();
        sizes[dimension] = size;
        return new Shape(sizes);
    }

    /** Returns a shape with a new first dimension. */
    public static Shape stacked(long count, Shape shape) {
        return new Shape(count).addAll(shape);
    }

    public static MatrixLayout layout(TensorInfo matrix) {
        long[] sizes = matrix.sizes();
        long[] strides = matrix.strides();
        return new MatrixLayout(sizes[0], sizes[1], strides[0], strides[1]);
    }

    /**
     * Returns whether a matmul can read a matrix without a copy: rows or columns are contiguous.
     */
    public static boolean isUsable(MatrixLayout layout) {
        return layout.isRowMajor() || layout.transposed().isRowMajor();
    }

    /** Moves the first dimension to a given index. Closes the array if it returns a view of it. */
    public static NDArray restore(NDArray front, int dimension) {
        return dimension == 0 ? front : detached(front, array -> move(array, 0, dimension));
    }

    /** Replaces an array by a view, and closes the array. The view keeps the storage alive. */
    public static NDArray detached(NDArray array, UnaryOperator<NDArray> view) {
        NDArray result = view.apply(array);
        if (result != array) {
            array.close();
        }
        return result;
    }
}
