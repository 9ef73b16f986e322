// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.pytorch.jni.JniUtils;
import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.function.Supplier;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.Torch;
import org.djlx.training.internal.PrivateFields;

/**
 * Finds out in a trainer's first pass, one of each kind, whether the batch can be divided among
 * ranks: the block computes the whole batch, twice in training mode, and the ranks' predictions
 * must equal these. Refuses a block that keeps state in fields, which ranks' threads would share.
 */
final class SplitCheck {

    /**
     * Where each array has the batch. Data and labels whose first dimension is the batch are
     * divided among the ranks; all ranks get the other arrays whole. {@code outputs} is the batch's
     * dimension in each prediction, or {@link #NONE}; null before they are known.
     */
    record Layout(boolean[] data, boolean[] labels, int[] outputs) {

        static final int NONE = -1;

        /**
         * Compares first dimensions of data and labels; {@code like} is an earlier batch's layout,
         * with the same layout of data, or null. The predictions are not known yet.
         */
        static Layout of(NDList data, NDList labels, Layout like) {
            Shape first = data.head().getShape();
            if (first.dimension() == 0 || first.get(0) == 0) {
                throw new IllegalArgumentException(
                        String.format(
                                "forward: the first data has shape %s: its first dimension must be"
                                        + " the batch, of 1 row or more, to divide it among ranks",
                                first));
            }
            long rows = first.get(0);
            boolean[] ofData = like == null ? of(data, rows) : like.data;
            return new Layout(ofData, of(labels, rows), null);
        }

        void requirePredictions(int count) {
            if (outputs != null && outputs.length != count) {
                throw new IllegalArgumentException(
                        String.format(
                                "forward: the block returns %d predictions, but returned %d for the"
                                        + " first batch; return as many for each batch",
                                count, outputs.length));
            }
        }

        /**
         * Returns this layout with the batch dimension of each prediction: the first dimension that
         * has the rows of the batch in the prediction of the whole batch, and the rows of a rank in
         * the prediction of each rank. Without such a dimension, it is 0 if the first dimension has
         * the rows of the batch, otherwise none.
         */
        Layout withOutputs(Shape[] whole, List<Shape[]> parts, long[] rows) {
            long batch = Arrays.stream(rows).sum();
            int[] dimensions = new int[whole.length];
            for (int k = 0; k < whole.length; k++) {
                Shape shape = whole[k];
                boolean first = shape.dimension() > 0 && shape.get(0) == batch;
                dimensions[k] = first ? 0 : NONE;
                for (int d = shape.dimension() - 1; d >= 0; d--) {
                    boolean divided = shape.get(d) == batch;
                    for (int rank = 0; divided && rank < rows.length; rank++) {
                        Shape[] own = parts.get(rank);
                        divided =
                                rows[rank] == 0
                                        || k < own.length && isPart(own[k], shape, d, rows[rank]);
                    }
                    if (divided) {
                        dimensions[k] = d;
                    }
                }
            }
            return new Layout(data, labels, dimensions);
        }

        private static boolean isPart(Shape part, Shape whole, int dimension, long rows) {
            Shape before = whole.slice(0, dimension);
            Shape after = whole.slice(dimension + 1);
            // A block may drop the first dimension of one row.
            return part.equals(before.add(rows).addAll(after))
                    || rows == 1 && dimension == 0 && part.equals(after);
        }

        private static boolean[] of(NDList arrays, long rows) {
            boolean[] divided = new boolean[arrays == null ? 0 : arrays.size()];
            for (int k = 0; k < divided.length; k++) {
                Shape shape = arrays.get(k).getShape();
                divided[k] = shape.dimension() > 0 && shape.get(0) == rows;
            }
            return arrays == null ? null : divided;
        }
    }

    private final Shape[] shapes; // of the predictions for the whole batch
    // Predictions for the whole batch; null if random numbers or each rank's rows change them.
    private final NDList whole;
    private final boolean half; // whether the block computes in a 16-bit type

    private SplitCheck(Shape[] shapes, NDList whole, boolean half) {
        this.shapes = shapes;
        this.whole = whole;
        this.half = half;
    }

    /**
     * Computes the whole batch in training mode. {@code half}: in a 16-bit type; {@code perRank}:
     * with statistics of each rank's rows.
     *
     * @throws IllegalArgumentException if the block keeps state in fields
     */
    static SplitCheck ofTraining(
            Block block, NDManager manager, boolean half, boolean perRank, Supplier<NDList> pass) {
        NDList[] passes = new NDList[1];
        boolean draws = draws(manager, () -> passes[0] = NoGradient.get(pass));
        NDList first = passes[0];
        Map<String, Object> before = new LinkedHashMap<>();
        state("", block, before);
        NDList second = NoGradient.get(pass);
        Map<String, Object> after = new LinkedHashMap<>();
        state("", block, after);
        before.forEach(
                (field, value) -> {
                    if (!isSame(value, after.get(field))) {
                        throw new IllegalArgumentException(
                                String.format(
                                        "forward: the block keeps state in the field %s between"
                                                + " passes, which the threads of several ranks"
                                                + " would share; return it as a prediction, train"
                                                + " one rank per process, or call"
                                                + " optCheckForward(false)",
                                        field));
                    }
                });
        Shape[] shapes = first.getShapes();
        boolean random = draws || perRank || difference(first, second, half) != null;
        second.close();
        if (random) {
            first.close();
        }
        return new SplitCheck(shapes, random ? null : first, half);
    }

    static SplitCheck ofEvaluation(boolean half, Supplier<NDList> pass) {
        NDList whole = NoGradient.get(pass);
        return new SplitCheck(whole.getShapes(), whole, half);
    }

    /**
     * Returns whether a pass draws random numbers. Comparing two passes is not enough: with a
     * dropout of 1 %, they may be equal. Afterwards the generators continue from a seed that was
     * drawn from the program's generator.
     */
    private static boolean draws(NDManager manager, Runnable pass) {
        long seed = draw(manager, Device.cpu());
        long next = draw(manager, Device.cpu());
        JniUtils.setSeed(seed);
        long[] unused = {draw(manager, Device.cpu()), draw(manager, manager.getDevice())};
        JniUtils.setSeed(seed);
        pass.run();
        long[] after = {draw(manager, Device.cpu()), draw(manager, manager.getDevice())};
        JniUtils.setSeed(next);
        return !Arrays.equals(unused, after);
    }

    private static long draw(NDManager parent, Device device) {
        try (NDManager manager = parent.newSubManager(device)) {
            Shape one = new Shape(1);
            return manager.randomInteger(0, Long.MAX_VALUE, one, DataType.INT64).getLong(0);
        }
    }

    Shape[] shapes() {
        return shapes;
    }

    /**
     * Throws an {@link IllegalArgumentException} if the ranks' predictions differ from those for
     * the whole batch. If those in training mode may, {@code evaluation} checks those of evaluation
     * mode.
     */
    void compare(NDList split, int ranks, Runnable evaluation) {
        if (whole == null) {
            evaluation.run();
            return;
        }
        String difference = NoGradient.get(() -> difference(whole, split, half));
        if (difference != null) {
            throw refusal(ranks, difference);
        }
        whole.close();
    }

    static IllegalArgumentException refusal(int ranks, String difference) {
        return new IllegalArgumentException(
                String.format(
                        "forward: %d ranks, with a part of the batch each, predict something else"
                            + " than one rank: %s. The first dimension of the data must be the"
                            + " batch (LSTM: optBatchFirst(true)), and a row's prediction must not"
                            + " depend on other rows, except through BatchNorm, or on random"
                            + " numbers in evaluation. If an array without the batch has as many"
                            + " rows as this batch, begin with a batch of another size. Otherwise"
                            + " train on one rank or in processes, or, if the difference is meant,"
                            + " call optCheckForward(false)",
                        ranks, difference));
    }

    /** Says which array differs by more than rounding; returns null if none does. */
    private static String difference(NDList expected, NDList actual, boolean half) {
        for (int k = 0; k < Math.max(expected.size(), actual.size()); k++) {
            if (expected.size() != actual.size()
                    || !expected.get(k).getShape().equals(actual.get(k).getShape())) {
                return String.format(
                        "their shapes are %s, not %s",
                        Arrays.toString(actual.getShapes()), Arrays.toString(expected.getShapes()));
            }
            NDArray array = expected.get(k);
            if (array.size() == 0) {
                continue; // libtorch has no maximum of nothing.
            }
            boolean coarse = half || Torch.scalarType(array).isReducedFloatingPoint();
            try (NDArray a = array.toType(DataType.FLOAT64, true);
                    NDArray b = actual.get(k).toType(DataType.FLOAT64, true);
                    NDArray size = a.abs().max();
                    NDArray error = a.sub(b).abs().max()) {
                double allowed = (coarse ? 3e-2 : 1e-3) * size.getDouble();
                if (error.getDouble() > allowed) { // Accepts NaN: the program's loss shows it.
                    return String.format(
                            "prediction %d of shape %s differs by %.3g, where its greatest"
                                    + " magnitude is %.3g",
                            k, array.getShape(), error.getDouble(), size.getDouble());
                }
            }
        }
        return null;
    }

    /** Collects the values of all fields of a block and its descendants, by path. */
    private static void state(String path, Block block, Map<String, Object> values) {
        for (Field field : PrivateFields.of(block)) {
            String name = path + field.getDeclaringClass().getSimpleName() + "." + field.getName();
            values.put(name, copy(PrivateFields.get(field, block)));
        }
        block.getChildren()
                .forEach(child -> state(path + child.getKey() + "/", child.getValue(), values));
    }

    private static Object copy(Object value) {
        return value instanceof Collection<?> list
                ? new ArrayList<>(list)
                : value instanceof Map<?, ?> map ? new ArrayList<>(map.values()) : value;
    }

    private static boolean isSame(Object a, Object b) {
        if (a instanceof List<?> one && b instanceof List<?> other) {
            boolean same = one.size() == other.size();
            for (int i = 0; same && i < one.size(); i++) {
                same = one.get(i) == other.get(i);
            }
            return same;
        }
        return a == b || !(a instanceof NDArray) && Objects.equals(a, b);
    }
}
