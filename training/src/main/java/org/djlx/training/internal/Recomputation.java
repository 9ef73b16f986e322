// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.internal;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.norm.Dropout;
import ai.djl.pytorch.engine.PtNDArray;
import ai.djl.pytorch.jni.JniUtils;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import org.djlx.collectives.Agreement;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.Torch;

/**
 * Computes a block on one rank without keeping its intermediate arrays; the backward pass computes
 * it again with a graph. Design:
 *
 * <ol>
 *   <li>The block is one operator of a {@link GradientScope}, of which only inputs and outputs are
 *       kept.
 *   <li>The second computation writes to copies of statistics, such as those of batch
 *       normalisation, so they change once.
 *   <li>The first pass computes the block twice more and compares the predictions. If they differ,
 *       or if the block has dropout, both computations start from the same seed.
 *   <li>libtorch has one generator per device, and setting the seed sets all. So with several ranks
 *       in the JVM, or if the predictions differ in spite of the seed, the graph is kept.
 *   <li>All ranks of a group take the same decision.
 * </ol>
 */
public final class Recomputation {

    /** How the backward pass gets the graph. */
    public enum Mode {
        REPEATED,
        SEEDED,
        KEPT
    }

    static final AtomicInteger RANKS = new AtomicInteger();

    private static final ThreadLocal<Boolean> RUNNING = ThreadLocal.withInitial(() -> false);

    private final Block block;
    private final RankStore store;
    private Mode mode; // null before the first pass

    public Recomputation(Block block, RankStore store) {
        this.block = block;
        this.store = store;
    }

    /** Returns whether this thread computes a block again, and so keeps the graphs within it. */
    public static boolean isRunning() {
        return RUNNING.get();
    }

    /** Returns whether a pass computes gradients of a block's parameters or of its inputs. */
    public static boolean isTrained(Block block, NDList inputs) {
        return inputs.stream().anyMatch(Torch::requiresGradient)
                || block.getParameters().values().stream().anyMatch(Parameter::requiresGradient);
    }

    /** Computes a block. Its intermediate arrays are closed. */
    public static NDList compute(
            Block block, RankStore store, NDList inputs, NDList labels, boolean training) {
        try (NDManager temporary = store.manager().newSubManager()) {
            NDList outputs = compute(block, store, inputs, labels, training, temporary);
            outputs.attach(inputs.head().getManager());
            return outputs;
        }
    }

    private static NDList compute(
            Block block,
            RankStore own,
            NDList inputs,
            NDList labels,
            boolean training,
            NDManager temporary) {
        NDList aliases = new NDList();
        for (NDArray input : inputs) {
            NDArray alias = Torch.alias(temporary, input);
            alias.setName(input.getName());
            aliases.add(alias);
        }
        return training
                ? ForwardPass.forward(block, own, aliases, labels)
                : ForwardPass.evaluate(block, own, aliases);
    }

    /** Returns how the backward pass gets the graph; tries it out in the first pass. */
    public Mode mode(NDList inputs, NDList labels) {
        if (mode == null) {
            mode = NoGradient.get(() -> tryOut(inputs, labels));
        }
        return mode;
    }

    private Mode tryOut(NDList inputs, NDList labels) {
        if (!isOfAny(hasDropout(block) || differs(inputs, labels, null))) {
            return Mode.REPEATED;
        }
        boolean shared = isOfAny(RANKS.get() > 1);
        return shared || isOfAny(differs(inputs, labels, draw())) ? Mode.KEPT : Mode.SEEDED;
    }

    private boolean isOfAny(boolean own) {
        return Agreement.any(store.group(), store.manager(), own);
    }

    /** Returns whether the predictions differ when the block is computed twice. */
    private boolean differs(NDList inputs, NDList labels, Integer seed) {
        try (NDManager temporary = store.manager().newSubManager()) {
            NDList first = trial(inputs, labels, seed, temporary);
            return !isSame(first, trial(inputs, labels, seed, temporary));
        }
    }

    private boolean isSame(List<NDArray> one, List<NDArray> other) {
        CurrentStreams.await(store.manager().getDevice()); // It may wait for gathered parameters.
        boolean same = one.size() == other.size();
        for (int i = 0; same && i < one.size(); i++) {
            same = one.get(i).contentEquals(other.get(i));
        }
        return same;
    }

    private static boolean hasNaN(List<NDArray> arrays) {
        return arrays.stream().anyMatch(array -> array.isNaN().any().getBoolean());
    }

    private NDList trial(NDList inputs, NDList labels, Integer seed, NDManager temporary) {
        RankStore own = store.withOwnStatistics(block, temporary, store.isIdle());
        setSeed(seed);
        NDList data = ForwardPass.copy(inputs, temporary);
        return compute(block, own, data, ForwardPass.copy(labels, temporary), true, temporary);
    }

    private static boolean hasDropout(Block block) {
        return block instanceof Dropout
                || block.getChildren().values().stream().anyMatch(Recomputation::hasDropout);
    }

    private static void setSeed(Integer seed) {
        if (seed != null) {
            JniUtils.setSeed(seed);
        }
    }

    /** Draws a seed from libtorch's generator, so that it follows from the program's seed. */
    private Integer draw() {
        try (NDManager cpu = store.manager().newSubManager(Device.cpu())) {
            return (int)
                    cpu.randomInteger(0, Integer.MAX_VALUE, new Shape(1), DataType.INT64)
                            .getLong(0);
        }
    }

    /** Computes the block without a graph, and records it; not in mode {@code KEPT}. */
    public NDList forward(NDList data, NDList labels, GradientScope scope) {
        Integer seed = mode == Mode.SEEDED ? draw() : null;
        setSeed(seed);
        NDList outputs = NoGradient.get(() -> compute(block, store, data, labels, true));
        List<Integer> recorded = new ArrayList<>();
        for (int i = 0; i < outputs.size(); i++) {
            if (Torch.scalarType(outputs.get(i)).isFloatingPoint()) {
                recorded.add(i);
            }
        }
        if (recorded.isEmpty()) {
            return outputs;
        }
        List<String> names = data.stream().map(NDArray::getName).toList();
        boolean idle = store.isIdle(); // A later pass may set it before this one's backward pass.
        int ofLabels = labels == null ? 0 : labels.size();
        List<NDArray> keeps = labels == null ? new ArrayList<>() : new ArrayList<>(labels);
        if (seed != null) {
            recorded.forEach(i -> keeps.add(Torch.alias(data.head().getManager(), outputs.get(i))));
        }
        scope.record(
                "a block with activation checkpointing",
                List.copyOf(data),
                keeps,
                recorded.stream().map(outputs::get).toList(),
                (inputs, kept, gradients) -> {
                    try (NDManager temporary = store.manager().newSubManager()) {
                        NDList again = new NDList();
                        for (int i = 0; i < inputs.size(); i++) {
                            NDArray leaf = Torch.alias(temporary, inputs.get(i)).stopGradient();
                            leaf.setName(names.get(i));
                            leaf.setRequiresGradient(Torch.requiresGradient(inputs.get(i)));
                            again.add(leaf);
                        }
                        NDList given =
                                labels == null ? null : new NDList(kept.subList(0, ofLabels));
                        RankStore own = store.withOwnStatistics(block, temporary, idle);
                        Integer next = seed == null ? null : draw();
                        setSeed(seed);
                        List<NDArray> expected = kept.subList(ofLabels, kept.size());
                        goBack(own, again, given, recorded, expected, gradients);
                        setSeed(next);
                        NDManager owner = inputs.get(0).getManager();
                        return again.stream().map(leaf -> gradient(leaf, owner)).toList();
                    }
                });
        return outputs;
    }

    /** Computes the block with a graph, and its backward pass from the recorded outputs. */
    private void goBack(
            RankStore own,
            NDList inputs,
            NDList labels,
            List<Integer> recorded,
            List<NDArray> expected,
            List<NDArray> gradients) {
        boolean outer = RUNNING.get();
        RUNNING.set(true);
        try (GradientScope scope = GradientScope.create()) {
            scope.within(
                    () -> {
                        NDList outputs = ForwardPass.forward(block, own, inputs, labels);
                        List<NDArray> computed = recorded.stream().map(outputs::get).toList();
                        // NaN equals nothing: there the loss shows what is wrong.
                        if (!expected.isEmpty()
                                && !isSame(expected, computed)
                                && !hasNaN(expected)) {
                            throw new IllegalStateException(
                                    "backward: "
                                            + block.getClass().getName()
                                            + " predicts something else when it is computed again:"
                                            + " another thread has drawn random numbers meanwhile."
                                            + " Draw them on this thread, or leave out activation"
                                            + " checkpointing of this block");
                        }
                        List<NDArray> targets = new ArrayList<>();
                        List<NDArray> seeds = new ArrayList<>();
                        for (int i = 0; i < computed.size(); i++) {
                            if (Torch.requiresGradient(computed.get(i))) {
                                targets.add(computed.get(i));
                                seeds.add(gradients.get(i));
                            }
                        }
                        if (!targets.isEmpty()) {
                            scope.backward(targets, seeds);
                        }
                        return null;
                    });
        } finally {
            RUNNING.set(outer);
        }
    }

    public static NDArray gradient(NDArray leaf, NDManager owner) {
        NDArray gradient = leaf.hasGradient() ? JniUtils.getGradient((PtNDArray) leaf) : null;
        if (gradient != null) {
            gradient.attach(owner);
        }
        return gradient;
    }
}
