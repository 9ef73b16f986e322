// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.nn;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.pytorch.jni.JniUtils;
import java.util.List;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.TestArrays;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class VocabularyParallelCrossEntropyTest {

    private static final int IGNORED = 3;
    private static final float[] LABELS = {0, 4, IGNORED, 2, 4, 1};
    private static final Shape TOKENS = new Shape(2, 3);

    private record Result(double loss, double[] gradient) {}

    /** Returns the logits of all ranks, with large logits as padding. */
    private static double[] scores(int room, int vocabulary, double scale) {
        double[] scores = new double[LABELS.length * room];
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            Shape shape = new Shape(LABELS.length, vocabulary);
            double[] values =
                    TestArrays.random(manager, ScalarType.FLOAT64, shape, 8).toDoubleArray();
            for (int i = 0; i < scores.length; i++) {
                int column = i % room;
                scores[i] =
                        column < vocabulary
                                ? scale * values[i / room * vocabulary + column]
                                : 5 * scale;
            }
        }
        return scores;
    }

    private static VocabularyParallelCrossEntropy.Builder loss(ProcessGroup group, int vocabulary) {
        return VocabularyParallelCrossEntropy.builder().setGroup(group).setVocabulary(vocabulary);
    }

    private static Result run(
            ProcessGroup group, ScalarType type, int vocabulary, double[] scores, boolean ignore) {
        try (NDManager manager = NDManager.newBaseManager("PyTorch");
                GradientScope scope = GradientScope.open()) {
            int room = scores.length / LABELS.length;
            int own = room / group.worldSize();
            NDArray all = manager.create(scores, TOKENS.add(room));
            String columns = own * group.rank() + ":" + own * (group.rank() + 1);
            NDArray part = all.get(":, :, " + columns);
            NDArray prediction = NoGradient.get(() -> Torch.cast(part, type));
            prediction.setRequiresGradient(true);
            NDArray label = manager.create(LABELS);
            VocabularyParallelCrossEntropy.Builder builder = loss(group, vocabulary);
            VocabularyParallelCrossEntropy loss =
                    (ignore ? builder.optIgnoredLabel(IGNORED) : builder).build();
            NDArray value = loss.evaluate(new NDList(label), new NDList(prediction));
            scope.backward(value);
            try (NDArray gradient = prediction.getGradient()) {
                return new Result(
                        value(value), Torch.cast(gradient, ScalarType.FLOAT64).toDoubleArray());
            }
        }
    }

    private static double value(NDArray scalar) {
        return NoGradient.get(() -> Torch.cast(scalar, ScalarType.FLOAT64).getDouble());
    }

    /** Returns expected values, computed by loops. */
    private static Result reference(double[] scores, int vocabulary, boolean ignore) {
        int room = scores.length / LABELS.length;
        double[] gradient = new double[scores.length];
        double sum = 0;
        int count = ignore ? LABELS.length - 1 : LABELS.length;
        for (int i = 0; i < LABELS.length; i++) {
            if (ignore && LABELS[i] == IGNORED) {
                continue;
            }
            double largest = Double.NEGATIVE_INFINITY;
            for (int k = 0; k < vocabulary; k++) {
                largest = Math.max(largest, scores[i * room + k]);
            }
            double exponentials = 0;
            for (int k = 0; k < vocabulary; k++) {
                exponentials += Math.exp(scores[i * room + k] - largest);
            }
            int at = i * room + (int) LABELS[i];
            sum += Math.log(exponentials) + largest - scores[at];
            for (int k = 0; k < vocabulary; k++) {
                double probability = Math.exp(scores[i * room + k] - largest) / exponentials;
                gradient[i * room + k] = probability / count;
            }
            gradient[at] -= 1.0 / count;
        }
        return new Result(sum / count, gradient);
    }

    @ParameterizedTest
    @CsvSource({
        "1, 5, FLOAT64, false, 1, 1e-14",
        "2, 6, FLOAT64, true, 1, 1e-14",
        "2, 5, FLOAT64, false, 1, 1e-14",
        "4, 5, FLOAT64, true, 1, 1e-14",
        "8, 5, FLOAT64, false, 1, 1e-14",
        "2, 5, FLOAT64, true, 400, 1e-12",
        "2, 5, FLOAT32, true, 1, 1e-6",
        "2, 6, BFLOAT16, true, 1, 1e-3"
    })
    void equalsTheUndivided(
            int ranks,
            int vocabulary,
            ScalarType type,
            boolean ignore,
            double scale,
            double tolerance) {
        int own = (vocabulary + ranks - 1) / ranks;
        double[] scores = rounded(scores(own * ranks, vocabulary, scale), type);
        List<ProcessGroup> groups = ProcessGroups.local(ranks);
        try {
            List<Result> results =
                    ProcessGroups.run(
                            groups, group -> run(group, type, vocabulary, scores, ignore));
            Result expected = reference(scores, vocabulary, ignore);
            for (int rank = 0; rank < ranks; rank++) {
                double[] part = new double[LABELS.length * own];
                for (int i = 0; i < part.length; i++) {
                    part[i] = expected.gradient()[i / own * own * ranks + rank * own + i % own];
                }
                // The loss is float32 or float64; its gradient has the type of the prediction.
                double bound = type == ScalarType.BFLOAT16 ? 1e-6 : tolerance;
                assertEquals(expected.loss(), results.get(rank).loss(), bound * scale);
                assertArrayEquals(part, results.get(rank).gradient(), tolerance);
            }
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    private static double[] rounded(double[] values, ScalarType type) {
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            NDArray narrow = Torch.cast(manager.create(values), type);
            return Torch.cast(narrow, ScalarType.FLOAT64).toDoubleArray();
        }
    }

    @Test
    void equalsFiniteDifferences() {
        double[] scores = scores(6, 5, 1);
        double step = 1e-5;
        List<ProcessGroup> groups = ProcessGroups.local(2);
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        double[] gradient =
                                run(group, ScalarType.FLOAT64, 5, scores, true).gradient();
                        for (int i = 0; i < scores.length; i++) {
                            double[] more = scores.clone();
                            double[] less = scores.clone();
                            more[i] += step;
                            less[i] -= step;
                            double above = run(group, ScalarType.FLOAT64, 5, more, true).loss();
                            double below = run(group, ScalarType.FLOAT64, 5, less, true).loss();
                            if (i % 6 / 3 == group.rank()) {
                                assertEquals(
                                        (above - below) / (2 * step),
                                        gradient[i / 6 * 3 + i % 3],
                                        1e-9);
                            }
                        }
                        return null;
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    @Test
    void isZeroIfAllAreIgnored() {
        List<ProcessGroup> groups = ProcessGroups.local(2);
        try {
            List<Double> losses =
                    ProcessGroups.run(
                            groups,
                            group -> {
                                try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                                    NDArray prediction = manager.ones(new Shape(2, 3));
                                    NDArray label = manager.create(new int[] {-1, -1});
                                    return value(
                                            loss(group, 6)
                                                    .optIgnoredLabel(-1)
                                                    .build()
                                                    .evaluate(
                                                            new NDList(label),
                                                            new NDList(prediction)));
                                }
                            });
            assertEquals(List.of(0.0, 0.0), losses);
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    /**
     * Updates metrics like DJL's listeners: after the backward pass, on a thread with gradients on.
     */
    @Test
    void isAMetricOutsideOfAScope() {
        List<ProcessGroup> groups = ProcessGroups.local(2);
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        JniUtils.setGradMode(true);
                        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                            NDArray prediction = manager.ones(new Shape(2, 3));
                            prediction.setRequiresGradient(true);
                            NDList labels = new NDList(manager.create(new int[] {1, 5}));
                            VocabularyParallelCrossEntropy loss = loss(group, 6).build();
                            loss.addAccumulator("train");
                            loss.updateAccumulators(
                                    new String[] {"train"}, labels, new NDList(prediction));
                            assertEquals(Math.log(6), loss.getAccumulator("train"), 1e-6);
                        }
                        return null;
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    /** A rank is refused before it waits for the other. */
    @Test
    void refusesWhatDoesNotFit() {
        List<ProcessGroup> groups = ProcessGroups.local(2);
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            VocabularyParallelCrossEntropy loss =
                    loss(groups.get(0), 5).optIgnoredLabel(-100).build();
            NDArray prediction = manager.ones(new Shape(2, 3));
            assertRefused(
                    "1 of 2 label ids are out of range: they are from 1 to 5",
                    loss,
                    prediction,
                    1,
                    5);
            assertRefused(
                    "1 of 2 label ids are out of range: they are from -1 to 1",
                    loss,
                    prediction,
                    1,
                    -1);
            assertRefused("(tokens, …, 3)", loss, prediction, 1, 2, 3);
            assertRefused("(tokens, …, 3)", loss, manager.ones(new Shape(2, 5)), 1, 2);
            NDArray whole = Torch.cast(prediction, ScalarType.INT32);
            assertRefused("floating-point type", loss, whole, 1, 2);
            NDArray recorded = manager.ones(new Shape(2, 3));
            recorded.setRequiresGradient(true);
            JniUtils.setGradMode(true);
            try {
                assertRefused("GradientScope.open()", loss, recorded, 1, 2);
            } finally {
                JniUtils.setGradMode(false);
            }
            assertThrows(IllegalArgumentException.class, () -> loss(null, 5).build());
            assertThrows(IllegalArgumentException.class, () -> loss(groups.get(0), 0).build());
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    private static void assertRefused(
            String what, VocabularyParallelCrossEntropy loss, NDArray prediction, long... labels) {
        NDArray label = prediction.getManager().create(labels);
        IllegalArgumentException e =
                assertThrows(
                        IllegalArgumentException.class,
                        () -> loss.evaluate(new NDList(label), new NDList(prediction)));
        assertTrue(e.getMessage().contains(what), e.getMessage());
    }
}
