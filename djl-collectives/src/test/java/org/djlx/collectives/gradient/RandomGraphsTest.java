// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.gradient;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.pytorch.engine.PtNDArray;
import ai.djl.pytorch.jni.JniUtils;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.stream.Stream;
import org.djlx.nativeops.torch.NoGradient;
import org.junit.jupiter.api.Test;

/** Random graphs of autograd's operators and of recorded ones have the gradients of autograd. */
class RandomGraphsTest {

    private static final int GRAPHS = 300;
    private static final int STEPS = 16;
    private static final int SIZE = 4;

    private enum Operator {
        ADDED, // gives the same gradient to both
        RESHAPED, // passes it on as a view
        SAME, // passes it on
        MULTIPLIED,
        TRANSPOSED, // likewise, with other strides
        SPREAD, // gives one in which all rows have the same memory
        SUM_AND_PRODUCT, // two results
        ADDED_TO_FIRST; // gives the second input none

        List<NDArray> compute(NDArray a, NDArray b, NDArray ones) {
            // Once multiplied, for libtorch would let leaves behind views share their gradients.
            NDArray once = a.mul(ones);
            return switch (this) {
                case MULTIPLIED -> List.of(a.mul(b));
                case ADDED -> List.of(once.add(b));
                case SAME -> List.of(a.reshape(a.getShape()));
                case RESHAPED -> List.of(a.reshape(SIZE / 2, -1).reshape(SIZE, SIZE));
                case TRANSPOSED -> List.of(a.transpose());
                case SPREAD -> List.of(a.sum(new int[] {0}, true).broadcast(SIZE, SIZE));
                case SUM_AND_PRODUCT -> List.of(once.add(b), a.mul(b));
                case ADDED_TO_FIRST -> List.of(a.add(b.stopGradient()));
            };
        }

        List<NDArray> differentiate(NDArray a, NDArray b, List<NDArray> gradients) {
            NDArray of = gradients.get(0);
            return switch (this) {
                case MULTIPLIED -> List.of(of.mul(b), of.mul(a));
                case ADDED -> List.of(of, of);
                case SAME -> Stream.of(of, null).toList();
                case RESHAPED ->
                        Stream.of(of.reshape(SIZE / 2, -1).reshape(SIZE, SIZE), null).toList();
                case TRANSPOSED -> Stream.of(of.transpose(), null).toList();
                case SPREAD ->
                        Stream.of(of.sum(new int[] {0}, true).broadcast(SIZE, SIZE), null).toList();
                case SUM_AND_PRODUCT ->
                        List.of(of.add(gradients.get(1).mul(b)), of.add(gradients.get(1).mul(a)));
                case ADDED_TO_FIRST -> Stream.of(of, null).toList();
            };
        }
    }

    /** Returns the gradients of some leaves after two passes, each of a graph of its own. */
    private static List<double[]> gradients(int seed, boolean recorded) {
        Random random = new Random(seed);
        try (NDManager manager = NDManager.newBaseManager("PyTorch");
                GradientScope scope = GradientScope.open()) {
            NDArray ones = manager.ones(new Shape(SIZE, SIZE), DataType.FLOAT64);
            List<NDArray> leaves = new ArrayList<>();
            for (int i = 0; i < 4; i++) {
                leaves.add(array(manager, random));
                leaves.get(i).setRequiresGradient(i < 3); // The last one is constant.
            }
            for (int pass = 0; pass < 2; pass++) {
                NDManager step = manager.newSubManager();
                NDArray loss = loss(recorded ? scope : null, step, leaves, ones, random);
                loss.attach(manager);
                if (random.nextBoolean()) { // Nobody else needs what it was computed from.
                    step.close();
                }
                scope.backward(loss);
            }
            return leaves.subList(0, 3).stream().map(RandomGraphsTest::gradient).toList();
        }
    }

    /** Computes a loss of random operators; null for the scope if autograd is to see all. */
    private static NDArray loss(
            GradientScope scope,
            NDManager step,
            List<NDArray> leaves,
            NDArray ones,
            Random random) {
        List<NDArray> nodes = new ArrayList<>(leaves);
        for (int i = 0; i < STEPS; i++) {
            // More of the first ones, and of recent nodes.
            int most = Operator.values().length;
            Operator operator = Operator.values()[random.nextInt(1 + random.nextInt(most))];
            NDArray a = nodes.get(nodes.size() - 1 - random.nextInt(Math.min(nodes.size(), 5)));
            NDArray b = nodes.get(random.nextInt(nodes.size()));
            List<NDArray> results;
            boolean outside = random.nextBoolean();
            if (outside
                    && scope != null
                    && (NoGradient.isRecorded(a) || NoGradient.isRecorded(b))) {
                results = NoGradient.get(() -> operator.compute(a, b, ones));
                scope.record(
                        operator.name(),
                        List.of(a, b),
                        List.of(),
                        results,
                        (inputs, kept, gradients) ->
                                operator.differentiate(inputs.get(0), inputs.get(1), gradients));
            } else {
                results = operator.compute(a, b, ones);
            }
            results.forEach(result -> result.attach(step));
            nodes.addAll(results);
        }
        NDArray loss = leaves.get(0).mul(ones).sum();
        for (int i = 0; i < 3; i++) {
            NDArray node = nodes.get(nodes.size() - 1 - random.nextInt(STEPS));
            loss = loss.add(node.mul(node).sum());
        }
        loss.attach(step);
        return loss;
    }

    /** Makes a matrix in libtorch's memory: autograd keeps it without the Java buffer. */
    private static NDArray array(NDManager manager, Random random) {
        double[] values = random.doubles(SIZE * SIZE, -1, 1).toArray();
        try (NDArray array = manager.create(values, new Shape(SIZE, SIZE))) {
            return array.duplicate();
        }
    }

    private static double[] gradient(NDArray leaf) {
        try (NDArray gradient = JniUtils.getGradient((PtNDArray) leaf)) {
            return gradient == null ? new double[SIZE * SIZE] : gradient.toDoubleArray();
        }
    }

    @Test
    void gradientsAreThoseOfAutograd() {
        int reached = 0;
        for (int seed = 0; seed < GRAPHS; seed++) {
            List<double[]> expected = gradients(seed, false);
            List<double[]> actual = gradients(seed, true);
            for (int i = 0; i < expected.size(); i++) {
                double most = 1;
                for (double value : expected.get(i)) {
                    most = Math.max(most, Math.abs(value));
                }
                reached += expected.get(i)[0] == 0 ? 0 : 1;
                String what = "graph " + seed + ", leaf " + i;
                assertArrayEquals(expected.get(i), actual.get(i), most * 1e-12, what);
            }
        }
        assertTrue(reached > GRAPHS, "leaves reached: " + reached);
    }
}
