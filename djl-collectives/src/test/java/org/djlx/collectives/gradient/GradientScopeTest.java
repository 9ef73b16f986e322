// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.gradient;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.NDScope;
import ai.djl.ndarray.types.Shape;
import ai.djl.pytorch.engine.PtNDArray;
import ai.djl.pytorch.jni.JniUtils;
import ai.djl.training.GradientCollector;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.TestArrays;
import org.djlx.nativeops.host.MainProcess;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class GradientScopeTest {

    private static float gradient(NDArray array) {
        try (NDArray gradient = array.getGradient()) {
            return gradient.getFloat();
        }
    }

    /** Doubles a number outside of the graph. */
    private static NDArray twice(GradientScope scope, NDArray x) {
        NDArray result = NoGradient.get(() -> x.mul(2));
        scope.record(
                "twice",
                List.of(x),
                List.of(),
                List.of(result),
                (inputs, kept, gradients) -> List.of(gradients.get(0).mul(2)));
        return result;
    }

    @ParameterizedTest
    @ValueSource(strings = {"scope", "no gradient"})
    void aProgramMayBeginWithAScope(String call) throws Exception {
        MainProcess.run(FirstCall.class, call); // fails if the program does
    }

    @Test
    void gradientModeIsRestored() {
        for (boolean mode : new boolean[] {false, true}) {
            boolean before = JniUtils.isGradMode();
            JniUtils.setGradMode(mode);
            try {
                try (GradientScope scope = GradientScope.open()) {
                    assertTrue(JniUtils.isGradMode());
                    assertEquals(scope, GradientScope.current().orElseThrow());
                    assertThrows(IllegalStateException.class, GradientScope::open);
                }
                assertEquals(mode, JniUtils.isGradMode());
                assertTrue(GradientScope.current().isEmpty());
            } finally {
                JniUtils.setGradMode(before);
            }
        }
    }

    @Test
    void callersMayCloseTheirArrays() {
        try (NDManager manager = NDManager.newBaseManager("PyTorch");
                GradientScope scope = GradientScope.open()) {
            NDArray x = manager.create(3f);
            x.setRequiresGradient(true);
            NDArray loss;
            try (NDManager inner = manager.newSubManager()) {
                NDArray square = x.square();
                square.attach(inner);
                NDArray y = twice(scope, square);
                y.attach(inner);
                NDArray z = twice(scope, y);
                z.attach(inner);
                loss = z.mul(z);
                loss.attach(manager);
            }
            scope.backward(loss); // (4 x²)², so 64 x³
            assertEquals(64 * 27f, gradient(x));
        }
    }

    /** A result that other operators and the graph read adds up what comes from all of them. */
    @Test
    void gradientsOfOneResultAddUp() {
        try (NDManager manager = NDManager.newBaseManager("PyTorch");
                GradientScope scope = GradientScope.open()) {
            NDArray x = manager.create(3f);
            x.setRequiresGradient(true);
            NDArray y = twice(scope, x);
            NDArray product = NoGradient.get(() -> y.mul(y));
            scope.record(
                    "product",
                    List.of(y, y),
                    List.of(),
                    List.of(product),
                    (inputs, kept, gradients) ->
                            List.of(
                                    gradients.get(0).mul(inputs.get(1)),
                                    gradients.get(0).mul(inputs.get(0))));
            NDArray z = twice(scope, y);
            // (2 x)² + (4 x)² + (2 x)³, so 8 x + 32 x + 24 x²
            scope.backward(product.add(z.square()).add(y.pow(3)));
            assertEquals(40 * 3 + 24 * 9f, gradient(x));
            NDArray last = y.square();
            assertThrows(IllegalStateException.class, () -> scope.backward(last));
        }
    }

    /** A rule may pass on what it got, be it from the graph or from another operator. */
    @Test
    void gradientsArePassedOnUnchanged() {
        try (NDManager manager = NDManager.newBaseManager("PyTorch");
                GradientScope scope = GradientScope.open()) {
            NDArray x = manager.create(3f);
            x.setRequiresGradient(true);
            NDArray y = DifferentiableCollectives.cut(twice(scope, x));
            NDArray z = DifferentiableCollectives.cut(y);
            scope.backward(z.square().add(y)); // (2 x)² + 2 x
            assertEquals(26f, gradient(x));
        }
    }

    private static NDArray leaf(NDManager manager, Shape shape, double... values) {
        NDArray array = manager.create(values, shape);
        array.setRequiresGradient(true);
        return array;
    }

    /** Two passes: the first makes the gradients of the originals, the second adds to them. */
    @Test
    void gradientsOfConversionsGoToTheOriginals() {
        try (NDManager manager = NDManager.newBaseManager("PyTorch");
                GradientScope scope = GradientScope.open()) {
            NDArray first = leaf(manager, new Shape(2, 1), 1, 2);
            NDArray frozen = manager.create(new double[] {3, 4}, new Shape(2, 1));
            NDArray last = leaf(manager, new Shape(2, 2), 5, 6, 7, 8);
            List<NDArray> originals = List.of(first, frozen, last);
            for (int pass = 1; pass <= 2; pass++) {
                NDArray joined =
                        NoGradient.get(
                                () ->
                                        Torch.cast(
                                                NDArrays.concat(new NDList(originals), 1),
                                                ScalarType.FLOAT32));
                scope.recordConversion(originals, joined);
                assertEquals(originals, scope.originals(joined));
                assertEquals(List.of(first), scope.originals(first));
                // One way through the graph, and one through another operator.
                scope.backward(joined.square().sum().add(twice(scope, joined).sum()));
                assertArrayEquals(new double[] {4 * pass, 6 * pass}, doubles(first));
                assertArrayEquals(
                        new double[] {12 * pass, 14 * pass, 16 * pass, 18 * pass}, doubles(last));
            }
        }
    }

    private static double[] doubles(NDArray array) {
        try (NDArray gradient = array.getGradient()) {
            return gradient.toDoubleArray();
        }
    }

    /** An operator takes the gradient to the original itself: nothing else gets there. */
    @Test
    void operatorsMayDifferentiateTheOriginals() {
        try (NDManager manager = NDManager.newBaseManager("PyTorch");
                GradientScope scope = GradientScope.open()) {
            NDArray x = leaf(manager, new Shape(2), 1, 2);
            NDArray middle = DifferentiableCollectives.cut(x);
            NDArray converted = NoGradient.get(() -> Torch.cast(middle, ScalarType.FLOAT32));
            scope.recordConversion(List.of(middle), converted);
            NDArray result = NoGradient.get(() -> converted.mul(3));
            scope.record(
                    "thrice",
                    scope.originals(converted),
                    List.of(),
                    List.of(result),
                    (inputs, kept, gradients) ->
                            List.of(Torch.cast(gradients.get(0), ScalarType.FLOAT64).mul(3)));
            scope.backward(result.sum());
            assertArrayEquals(new double[] {3, 3}, doubles(x));
            try (NDArray none = JniUtils.getGradient((PtNDArray) converted)) {
                assertNull(none);
            }
        }
    }

    @Test
    void conversionsThatDoNotFitAreRefused() {
        try (NDManager manager = NDManager.newBaseManager("PyTorch");
                GradientScope scope = GradientScope.open()) {
            NDArray a = leaf(manager, new Shape(2, 1), 1, 2);
            NDArray b = leaf(manager, new Shape(1, 2), 1, 2);
            NDArray whole = manager.zeros(new Shape(2, 2));
            for (List<NDArray> originals : List.of(List.of(a, b), List.of(a), List.<NDArray>of())) {
                assertThrows(
                        IllegalArgumentException.class,
                        () -> scope.recordConversion(originals, whole));
            }
            // An original that the caller has closed is no longer known.
            NDArray closed = leaf(manager, new Shape(2), 1, 2);
            NDArray converted = NoGradient.get(() -> Torch.cast(closed, ScalarType.FLOAT32));
            scope.recordConversion(List.of(closed), converted);
            closed.close();
            assertEquals(List.of(converted), scope.originals(converted));
        }
    }

    /** To convert to the type that an array has may be to return it: its gradient would double. */
    @Test
    void inputsAsResultsAreRefused() {
        try (NDManager manager = NDManager.newBaseManager("PyTorch");
                GradientScope scope = GradientScope.open()) {
            NDArray w = leaf(manager, new Shape(2), 1, 2);
            NDArray same = NoGradient.get(() -> w.toType(w.getDataType(), false));
            IllegalArgumentException e =
                    assertThrows(
                            IllegalArgumentException.class,
                            () -> scope.recordConversion(List.of(w), same));
            assertTrue(
                    e.getMessage().startsWith("convert: the output of shape (2) is also an input"));
            List<NDArray> both = List.of(w.stopGradient(), w);
            assertThrows(
                    IllegalArgumentException.class,
                    () -> scope.record("both", List.of(w), List.of(), both, (i, k, g) -> g));
            scope.backward(w.sum());
            assertArrayEquals(new double[] {1, 1}, doubles(w));
        }
    }

    /** Adds outside of the graph: both get the same gradient, in one memory. */
    private static NDArray sum(GradientScope scope, NDArray x, NDArray y) {
        NDArray result = NoGradient.get(() -> x.add(y));
        scope.record(
                "sum",
                List.of(x, y),
                List.of(),
                List.of(result),
                (inputs, kept, gradients) -> List.of(gradients.get(0), gradients.get(0)));
        return result;
    }

    /** Operators may share a gradient; what reaches leaves is added to in place. */
    @Test
    void sharedGradientsAreNotChanged() {
        try (NDManager manager = NDManager.newBaseManager("PyTorch");
                GradientScope scope = GradientScope.open()) {
            NDArray w = leaf(manager, new Shape(4), 1, 2, 3, 4);
            NDArray matrix = leaf(manager, new Shape(2, 2), 0, 0, 0, 0);
            NDArray a = DifferentiableCollectives.cut(matrix);
            NDArray b = DifferentiableCollectives.cut(w.reshape(2, 2));
            NDArray c = sum(scope, a, b);
            NDArray d = sum(scope, sum(scope, c, w.reshape(2, 2)), b);
            NDArray given = manager.create(new double[] {1, 2, 3, 4}, new Shape(2, 2));
            scope.backward(List.of(d), List.of(given)); // matrix + 3 w
            assertArrayEquals(new double[] {1, 2, 3, 4}, doubles(matrix));
            assertArrayEquals(new double[] {3, 6, 9, 12}, doubles(w));
            assertArrayEquals(new double[] {1, 2, 3, 4}, given.toDoubleArray());
        }
    }

    /** The first of three goes to a leaf behind a view, and the second is added to it in place. */
    @Test
    void oneGradientOfThreeInputsIsThatOfEach() {
        try (NDManager manager = NDManager.newBaseManager("PyTorch");
                GradientScope scope = GradientScope.open()) {
            NDArray w = leaf(manager, new Shape(4), 1, 2, 3, 4);
            NDArray x = leaf(manager, new Shape(2, 2), 1, 2, 3, 4);
            NDArray y = w.reshape(2, 2);
            NDArray sum = NoGradient.get(() -> y.add(y).add(x));
            scope.record(
                    "sum",
                    List.of(y, y, x),
                    List.of(),
                    List.of(sum),
                    (inputs, kept, gradients) -> {
                        NDArray tenfold = gradients.get(0).mul(10);
                        return List.of(tenfold, tenfold, tenfold);
                    });
            scope.backward(sum);
            assertArrayEquals(new double[] {20, 20, 20, 20}, doubles(w));
            assertArrayEquals(new double[] {10, 10, 10, 10}, doubles(x));
        }
    }

    /** Behind a view, a leaf's gradient would stay in the memory of the one that is given. */
    @Test
    void givenGradientsAreNotChanged() {
        try (NDManager manager = NDManager.newBaseManager("PyTorch");
                GradientScope scope = GradientScope.open()) {
            NDArray w = leaf(manager, new Shape(4), 1, 2, 3, 4);
            NDArray given = manager.create(new double[] {1, 2, 3, 4}, new Shape(2, 2));
            for (boolean cut : new boolean[] {false, true}) {
                NDArray leaf = cut ? DifferentiableCollectives.cut(w) : w;
                NDArray target = leaf.reshape(2, 2);
                scope.backward(List.of(target, target, target), List.of(given, given, given));
                assertArrayEquals(new double[] {1, 2, 3, 4}, given.toDoubleArray());
            }
            assertArrayEquals(new double[] {6, 12, 18, 24}, doubles(w));
            given.muli(2);
            assertArrayEquals(new double[] {6, 12, 18, 24}, doubles(w));
        }
    }

    /** libtorch may leave a gradient in the memory of the one that it is a view of. */
    @Test
    void gradientsSharedByViewsAreKept() {
        try (NDManager manager = NDManager.newBaseManager("PyTorch");
                GradientScope scope = GradientScope.open()) {
            NDArray w = manager.create(new float[] {1, 2, 3, 4});
            NDArray bias = manager.create(new float[] {1, 1, 1, 1});
            w.setRequiresGradient(true);
            bias.setRequiresGradient(true);
            NDArray y = DifferentiableCollectives.cut(w.reshape(2, 2));
            NDArray sum = DifferentiableCollectives.cut(y.add(bias.reshape(2, 2)));
            NDArray z = DifferentiableCollectives.cut(w.reshape(2, 2));
            scope.backward(sum.square().sum().add(z.sum())); // (w + bias)² + w
            assertArrayEquals(new float[] {5, 7, 9, 11}, gradients(w));
            assertArrayEquals(new float[] {4, 6, 8, 10}, gradients(bias));
            scope.backward(w.add(bias).sum()); // It does not reach what is gone through.
            assertArrayEquals(new float[] {6, 8, 10, 12}, gradients(w));
            assertArrayEquals(new float[] {5, 7, 9, 11}, gradients(bias));
        }
    }

    private static float[] gradients(NDArray array) {
        try (NDArray gradient = array.getGradient()) {
            return gradient.toFloatArray();
        }
    }

    /** What was gone through before a rule failed is not gone through again. */
    @Test
    void aFailedBackwardIsNotTriedAgain() {
        try (NDManager manager = NDManager.newBaseManager("PyTorch");
                GradientScope scope = GradientScope.open()) {
            NDArray x = manager.create(3f);
            x.setRequiresGradient(true);
            NDArray y = NoGradient.get(() -> x.mul(5));
            scope.record(
                    "failing",
                    List.of(x),
                    List.of(),
                    List.of(y),
                    (inputs, kept, gradients) -> {
                        throw new IllegalArgumentException("the rule");
                    });
            NDArray z = twice(scope, x);
            assertThrows(IllegalArgumentException.class, () -> scope.backward(z.add(y)));
            assertEquals(2f, gradient(x));
            assertThrows(IllegalStateException.class, () -> scope.backward(z.square()));
        }
    }

    /** A result that the target does not depend on has a gradient of zeros. */
    @Test
    void unusedResultGetsAGradientOfZeros() {
        try (NDManager manager = NDManager.newBaseManager("PyTorch");
                GradientScope scope = GradientScope.open()) {
            NDArray x = manager.create(3f);
            x.setRequiresGradient(true);
            boolean[] called = new boolean[1];
            NDArray unused = NoGradient.get(() -> x.mul(5));
            scope.record(
                    "unused",
                    List.of(x),
                    List.of(),
                    List.of(unused),
                    (inputs, kept, gradients) -> {
                        called[0] = true;
                        assertEquals(0f, gradients.get(0).getFloat());
                        return gradients;
                    });
            scope.backward(twice(scope, x));
            assertTrue(called[0]);
            assertEquals(2f, gradient(x));
        }
    }

    @Test
    void secondBackwardThroughAGraphIsRefused() {
        try (NDManager manager = NDManager.newBaseManager("PyTorch");
                GradientScope scope = GradientScope.open()) {
            NDArray x = manager.create(3f);
            x.setRequiresGradient(true);
            NDArray y = twice(scope, x);
            NDArray first = y.add(1);
            NDArray second = y.square();
            scope.backward(first);
            IllegalStateException e =
                    assertThrows(IllegalStateException.class, () -> scope.backward(second));
            assertTrue(e.getMessage().startsWith("twice: a gradient has reached"), e.getMessage());
        }
        // One forward and backward pass after the other adds up.
        try (NDManager manager = NDManager.newBaseManager("PyTorch");
                GradientScope scope = GradientScope.open()) {
            NDArray x = manager.create(3f);
            x.setRequiresGradient(true);
            scope.backward(twice(scope, x));
            scope.backward(twice(scope, x).square()); // 4 x², so 8 x
            assertEquals(26f, gradient(x));
        }
    }

    @Test
    void aScopeBelongsToItsThread() {
        try (NDManager manager = NDManager.newBaseManager("PyTorch");
                GradientScope scope = GradientScope.open()) {
            NDArray x = manager.create(3f);
            x.setRequiresGradient(true);
            CompletionException e =
                    assertThrows(
                            CompletionException.class,
                            () -> CompletableFuture.runAsync(() -> scope.backward(x)).join());
            assertTrue(e.getCause() instanceof IllegalStateException, e.toString());
        }
        GradientScope scope = GradientScope.create();
        assertThrows(
                IllegalStateException.class,
                () ->
                        scope.within(
                                () -> {
                                    throw new IllegalStateException();
                                }));
        assertTrue(GradientScope.current().isEmpty());
        try (GradientScope outer = GradientScope.open()) {
            assertSame(scope, scope.within(() -> GradientScope.current().orElseThrow()));
            assertSame(outer, GradientScope.current().orElseThrow());
        }
        scope.close();
        assertThrows(IllegalStateException.class, () -> scope.within(() -> null));
    }

    /** As DJL's collector: of all arrays. */
    @Test
    void zeroesTheGradientsOfAllArrays() {
        try (NDManager manager = NDManager.newBaseManager("PyTorch");
                NDManager other = NDManager.newBaseManager("PyTorch-P2P");
                GradientCollector collector =
                        Engine.getEngine("PyTorch-P2P").newGradientCollector()) {
            NDArray a = manager.create(3f);
            NDArray b = other.create(5f);
            NDArray unused = manager.create(7f);
            List.of(a, b, unused).forEach(array -> array.setRequiresGradient(true));
            collector.backward(a.mul(b));
            assertEquals(5, a.getGradient().getFloat());
            assertEquals(3, b.getGradient().getFloat());
            collector.zeroGradients();
            assertEquals(0, a.getGradient().getFloat());
            assertEquals(0, b.getGradient().getFloat());
            collector.backward(a.mul(b));
            assertEquals(5, a.getGradient().getFloat());
        }
    }

    @Test
    void anInputThatRequiresAGradientIsRefusedOutside() {
        List<ProcessGroup> groups = ProcessGroups.local(2);
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                            NDArray x = manager.ones(new Shape(2));
                            x.setRequiresGradient(true);
                            IllegalArgumentException e =
                                    assertThrows(
                                            IllegalArgumentException.class,
                                            () -> DifferentiableCollectives.allReduce(x, group));
                            assertTrue(
                                    e.getMessage().startsWith("allReduce: x requires a gradient"),
                                    e.getMessage());
                            assertTrue(e.getMessage().contains("GradientScope"), e.getMessage());
                            NDArray sum =
                                    NoGradient.get(
                                            () -> DifferentiableCollectives.allReduce(x, group));
                            assertArrayEquals(new float[] {2, 2}, sum.toFloatArray());
                            assertFalse(sum.hasGradient());
                            IllegalArgumentException uneven =
                                    assertThrows(
                                            IllegalArgumentException.class,
                                            () ->
                                                    DifferentiableCollectives.reduceScatter(
                                                            manager.ones(new Shape(3)), 0, group));
                            assertTrue(uneven.getMessage().contains("(3)"), uneven.getMessage());
                        }
                        return null;
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    /** DJL closes the factor of a product with a number; autograd reads it in the backward pass. */
    @Test
    void factorsOutliveGarbageCollections() {
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            NDArray x = manager.ones(new Shape(2));
            x.setRequiresGradient(true);
            List<NDArray> temporary = new ArrayList<>(); // by scope: before, within, after
            try (NDScope outer = new NDScope()) {
                temporary.add(x.add(x));
                try (GradientScope scope = GradientScope.open();
                        NDScope inner = new NDScope()) {
                    NDArray sum = x.mul(0.5f);
                    temporary.add(sum);
                    for (int i = 1; i < 100; i++) {
                        sum = sum.add(x.mul(0.5f));
                    }
                    TestArrays.reuseFreedMemory();
                    scope.backward(sum);
                    inner.suppressNotUsedWarning();
                }
                assertTrue(temporary.get(1).isReleased());
                assertFalse(temporary.get(0).isReleased());
                temporary.add(x.add(x));
                outer.suppressNotUsedWarning();
            }
            assertTrue(temporary.stream().allMatch(NDArray::isReleased));
            assertArrayEquals(new float[] {50, 50}, x.getGradient().toFloatArray());
        }
    }

    private static void assertChanged(String start, String shape, Executable backward) {
        String message = assertThrows(IllegalStateException.class, backward).getMessage();
        assertTrue(message.startsWith(start), message);
        assertTrue(message.contains(shape + " was changed in place"), message);
    }

    /** The graph behind the input would be another one, be the change recorded or not. */
    @Test
    void changedInputsAreRefused() {
        List<ProcessGroup> groups = ProcessGroups.local(1);
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            NDArray x = manager.ones(new Shape(2, 3));
            NDArray five = manager.create(5f);
            x.setRequiresGradient(true);
            for (boolean recorded : new boolean[] {true, false}) {
                try (GradientScope scope = GradientScope.open()) {
                    NDArray z = x.mul(five);
                    NDArray y = DifferentiableCollectives.allGather(z, 0, groups.get(0));
                    if (recorded) {
                        z.muli(five);
                    } else {
                        NoGradient.run(() -> z.reshape(6).muli(five)); // a view
                    }
                    assertChanged("allGather: input 0", "(2, 3)", () -> scope.backward(y.sum()));
                    IllegalStateException again =
                            assertThrows(
                                    IllegalStateException.class, () -> scope.backward(y.sum()));
                    assertTrue(again.getMessage().contains("is lost"), again.getMessage());
                }
            }
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    /** Those that wait for such a rank do not wait for the timeout, which is half an hour. */
    @Test
    void inputChangedOnOneRankFailsAllRanks() {
        List<ProcessGroup> groups = ProcessGroups.local(2);
        try {
            CollectiveException e =
                    assertThrows(
                            CollectiveException.class,
                            () -> ProcessGroups.run(groups, GradientScopeTest::changeOnRank1));
            assertTrue(e.getMessage().contains("was changed in place"), e.getMessage());
            String other = e.getSuppressed()[0].getMessage();
            assertTrue(other.contains("rank 1 has destroyed the group"), other);
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    private static Void changeOnRank1(ProcessGroup group) {
        try (NDManager manager = NDManager.newBaseManager("PyTorch");
                GradientScope scope = GradientScope.open()) {
            NDArray x = manager.ones(new Shape(2, 3));
            x.setRequiresGradient(true);
            NDArray z = x.square();
            NDArray y = DifferentiableCollectives.allGather(z, 0, group);
            if (group.rank() == 1) {
                NoGradient.run(() -> z.addi(x));
            }
            scope.backward(y.sum());
        }
        return null;
    }

    /** What a rule reads counts, whether it requires a gradient or not; the rest does not. */
    @Test
    void changedArraysThatTheRuleReadsAreRefused() {
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            NDArray x = manager.ones(new Shape(2));
            NDArray w = manager.ones(new Shape(2));
            NDArray unread = manager.ones(new Shape(2));
            w.setRequiresGradient(true);
            for (NDArray changed : List.of(x, w, unread)) {
                try (GradientScope scope = GradientScope.open()) {
                    NDArray y = NoGradient.get(() -> x.mul(w).add(unread));
                    scope.record(
                            "linear",
                            List.of(x, w, unread),
                            List.of(w, x),
                            List.of(y),
                            (inputs, kept, gradients) ->
                                    Arrays.asList(null, gradients.get(0).mul(kept.get(1)), null));
                    NoGradient.run(() -> changed.addi(1));
                    if (changed == unread) {
                        scope.backward(y.sum());
                        assertArrayEquals(new float[] {2, 2}, gradients(w));
                    } else {
                        String role = changed == x ? "linear: kept array 1" : "linear: input 1";
                        assertChanged(role, "(2)", () -> scope.backward(y.sum()));
                    }
                }
            }
        }
    }

    /** A step changes what the forward pass before has read, and the next one reads it. */
    @Test
    void weightsMayChangeBehindBackward() {
        List<ProcessGroup> groups = ProcessGroups.local(1);
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            NDArray w = manager.create(new float[] {8, 4});
            w.setRequiresGradient(true);
            for (boolean many : new boolean[] {true, false}) {
                GradientScope one = many ? null : GradientScope.open();
                for (int step = 0; step < 2; step++) {
                    try (GradientScope scope = many ? GradientScope.open() : null) {
                        NDArray y = DifferentiableCollectives.allReduce(w, groups.get(0));
                        (many ? scope : one).backward(y.square().sum());
                    }
                    try (NDArray gradient = w.getGradient()) {
                        NoGradient.run(() -> w.subi(gradient.mul(0.25f)));
                    }
                    JniUtils.zeroGrad((PtNDArray) w);
                }
                if (one != null) {
                    one.close();
                }
            }
            assertArrayEquals(new float[] {0.5f, 0.25f}, w.toFloatArray()); // each step halves it
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    /** What a step makes is closed with its manager, or by the scope: nothing adds up. */
    @Test
    void noArraysAreLeaked() {
        List<ProcessGroup> groups = ProcessGroups.local(1);
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            ProcessGroup group = groups.get(0);
            NDArray w = manager.ones(new Shape(2, 2));
            w.setRequiresGradient(true);
            int arrays = manager.getManagedArrays().size();
            int all = manager.getParentManager().getManagedArrays().size();
            for (int i = 0; i < 5; i++) {
                try (NDManager step = manager.newSubManager();
                        GradientScope scope = GradientScope.open()) {
                    NDArray x = step.ones(new Shape(2, 2));
                    NDArray h = DifferentiableCollectives.allGather(x.matMul(w), 1, group);
                    NDArray y = DifferentiableCollectives.reduceScatter(h, 0, group);
                    scope.backward(y.square().sum());
                }
                assertEquals(arrays, manager.getManagedArrays().size());
                assertEquals(all, manager.getParentManager().getManagedArrays().size());
            }
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    @Test
    void withinRefusesAnOpenScope() {
        try (GradientScope scope = GradientScope.create()) {
            Runnable nested = () -> scope.within(() -> scope.within(() -> 0));
            assertThrows(IllegalStateException.class, nested::run);
            GradientScope other = GradientScope.create();
            Runnable around = () -> scope.within(() -> other.within(() -> scope.within(() -> 0)));
            assertThrows(IllegalStateException.class, around::run);
            assertEquals(1, scope.within(() -> GradientScope.create().within(() -> 1)));
        }
    }
}
