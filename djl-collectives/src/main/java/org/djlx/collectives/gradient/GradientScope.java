/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.gradient;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.pytorch.engine.PtNDArray;
import ai.djl.pytorch.jni.JniUtils;
import ai.djl.training.GradientCollector;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.function.Supplier;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.Torch;

/**
 * Collects gradients on one thread, also through operators of groups: DJL's {@link
 * GradientCollector} for ranks. DJL's own allows one in a JVM; of these, each thread can have one,
 * so that ranks may be threads.
 *
 * <pre>{@code
 * try (GradientScope scope = GradientScope.open()) {
 *     GatheredMatmul up = FusedOps.allGatherMatmul(x, List.of(w1), 0, group);
 *     NDArray hidden = Activation.gelu(up.outputs().get(0));
 *     NDArray y = FusedOps.matmulReduceScatter(hidden, w2, ReduceOp.SUM, 0, group);
 *     scope.backward(loss(y)); // w1 and w2 have their gradients, and what x was computed from
 * }
 * }</pre>
 *
 * <p>libtorch's autograd does not see what runs on a group. So an operator that is called within a
 * scope runs outside the graph, and its result is a leaf from which a new graph begins. The scope
 * remembers these boundaries. {@link #backward} first runs autograd from the target, then goes
 * through the boundaries in the reverse order of the calls: it takes the gradient that has arrived
 * at the result, has the operator's {@linkplain GradientRule rule} turn it into the inputs'
 * gradients, and runs autograd from the inputs with these. The gradient of an input that is itself
 * a result goes straight to the operator that it comes from.
 *
 * <p>Which gradient that is: the one of the sum of what all ranks call {@code backward} on. All
 * ranks call the same operators in a scope, with inputs that require gradients on all of them or on
 * none, and then {@code backward} once for all that they computed: it goes through every boundary,
 * whether or not the target depends on it. A gradient that reaches a boundary in a later call is
 * lost, also if the first one has failed; if the result has not been closed until then, that call
 * throws {@link IllegalStateException}. After a failure gradients are incomplete: they are to be
 * zeroed, and the forward pass to be repeated.
 *
 * <p>A {@code backward} that fails on one rank alone, as where an array was changed on that one,
 * leaves the others waiting in the operators that it does not come to. They learn of it at once
 * when that rank destroys its group or its process ends, as {@link
 * org.djlx.collectives.ProcessGroups#run} and the trainer of {@link
 * org.djlx.collectives.engine.P2pEngine} see to for ranks in one JVM, and otherwise by their
 * timeout.
 *
 * <p>What is behind an input may be reached on other ways as well, such as a residual connection:
 * then autograd goes through it once for each. Begin a block with {@link
 * DifferentiableCollectives#cut}, from whose result all ways start, and it goes once.
 *
 * <p>Reshape a sum rather than what is added: libtorch lets leaves share the memory of their
 * gradients if views of them are added, as in {@code a.reshape(shape).add(b.reshape(shape))}, and
 * what it adds to the gradient of one later is then added to those of both, with any of DJL's
 * collectors (libtorch 2.7.1).
 *
 * <p>Results of operators are leaves that require a gradient, so libtorch refuses to change them in
 * place while gradients are on. What an operator needs for its gradient, such as weights, and its
 * inputs that require one must not change before {@code backward}, which throws {@link
 * IllegalStateException} if they have been changed in place, be it with gradients off. libtorch
 * counts what its own operators write, DJL's {@code muli} and {@code set} among them; what others
 * write at an array's address, such as kernels and operations of groups, is not counted, and
 * gradients may then be those of the new values.
 *
 * <p>Beware of numbers on the CPU, with any of DJL's collectors: {@code x.mul(0.5f)} and {@code
 * x.div(2)} put the number into memory of the JVM, of which autograd keeps the address alone. If
 * the garbage collector runs before the backward pass, gradients are wrong (DJL 0.35.1; seen in 192
 * of 200 backward passes behind a {@code System.gc()}). DJL's {@code L2Loss} does so. Multiply by
 * an array that lives until then: {@code x.mul(manager.create(0.5f))}. {@code add} and {@code sub}
 * keep nothing.
 *
 * <p>A scope belongs to the thread on which it runs, and is not thread-safe.
 */
public final class GradientScope implements GradientCollector {

    private static final ThreadLocal<GradientScope> CURRENT = new ThreadLocal<>();

    private final Runnable zero; // null if it is not known what
    private final Deque<Boundary> boundaries = new ArrayDeque<>(); // the last one first
    private final Map<NDArray, Boundary> makers = new IdentityHashMap<>(); // of results, likewise
    private final List<Boundary> passed = new ArrayList<>();
    private boolean regather;
    private Thread opener; // null if it runs only within run
    private boolean gradMode; // of the opener, before
    private boolean closed;

    private GradientScope(Runnable zero) {
        this.zero = zero;
    }

    /**
     * Opens a scope on this thread: gradients are on until it is closed.
     *
     * @return the scope, to be closed by this thread
     * @throws IllegalStateException if one is open on this thread
     */
    public static GradientScope open() {
        return open(null);
    }

    /**
     * Opens a scope on this thread that knows how to zero gradients.
     *
     * @param zero what {@link #zeroGradients} does; null if it is to refuse
     * @return the scope, to be closed by this thread
     * @throws IllegalStateException if one is open on this thread
     */
    public static GradientScope open(Runnable zero) {
        GradientScope scope = new GradientScope(zero);
        scope.enter();
        scope.opener = Thread.currentThread();
        scope.gradMode = JniUtils.isGradMode();
        JniUtils.setGradMode(true);
        return scope;
    }

    /**
     * Creates a scope that is open only while code {@linkplain #within runs within} it, on
     * whichever thread that is: for a forward and a backward pass between which a thread does other
     * things.
     *
     * @return the scope, to be closed
     */
    public static GradientScope create() {
        return new GradientScope(null);
    }

    /**
     * Runs code on the calling thread within this scope, with gradients on.
     *
     * @param body the code
     * @param <T> what it returns
     * @return what it returns
     * @throws IllegalStateException if a scope is open on this thread, or this one is closed
     */
    public <T> T within(Supplier<T> body) {
        checkOpen();
        enter();
        boolean before = JniUtils.isGradMode();
        JniUtils.setGradMode(true);
        try {
            return body.get();
        } finally {
            JniUtils.setGradMode(before);
            CURRENT.remove();
        }
    }

    private void enter() {
        if (CURRENT.get() != null) {
            throw new IllegalStateException(
                    "a GradientScope is open on this thread already; close it first");
        }
        CURRENT.set(this);
    }

    /**
     * Returns the scope that is open on this thread.
     *
     * @return the scope, if there is one
     */
    public static Optional<GradientScope> current() {
        return Optional.ofNullable(CURRENT.get());
    }

    /**
     * Returns the scope in which an operator with such an input is to be recorded: the one that is
     * open on this thread, if gradients are on and the input requires one.
     *
     * @param operator what is called, for the error
     * @param role which of its inputs that is, for the error
     * @param input the input
     * @return the scope; empty if autograd records nothing
     * @throws IllegalArgumentException if it is to be recorded and no scope is open on this thread,
     *     as the gradient would be lost
     */
    public static Optional<GradientScope> recording(String operator, String role, NDArray input) {
        if (!NoGradient.isRecorded(input)) {
            return Optional.empty();
        }
        GradientScope scope = CURRENT.get();
        if (scope == null) {
            throw new IllegalArgumentException(
                    String.format(
                            "%s: %s requires a gradient, which would be lost: call it within"
                                    + " GradientScope.open(), which a trainer of the engine"
                                    + " PyTorch-P2P does; or with gradients off, as for inference;"
                                    + " or pass %s.stopGradient()",
                            operator, role, role));
        }
        return Optional.of(scope);
    }

    /**
     * Says what operators do that need a gathered array for their gradients: keep it, which is the
     * default, or gather it again, which takes less memory and more time. The same on all ranks.
     *
     * @param regather whether to gather it again
     * @return this scope
     */
    public GradientScope optRegather(boolean regather) {
        this.regather = regather;
        return this;
    }

    /**
     * Tells whether operators are to gather again what they need for their gradients.
     *
     * @return whether they are
     */
    public boolean isRegathering() {
        return regather;
    }

    /**
     * Records a call of an operator that autograd does not see: the way to make an operator of
     * one's own differentiable. The operator has run, outside the graph.
     *
     * @param operator the operator's name, for errors
     * @param inputs its inputs, with or without gradients; those that require one must not change
     *     until {@link #backward}, which looks
     * @param kept what the rule reads and must not change until then either: further arrays, and
     *     inputs of which some may require no gradient
     * @param outputs its results; they become leaves that require a gradient, so each must be of
     *     floating-point type, and new
     * @param rule differentiates the operator
     * @throws IllegalArgumentException if there is no output, or one is an input
     * @throws IllegalStateException if this scope is not the one that is open on this thread
     */
    public void record(
            String operator,
            List<NDArray> inputs,
            List<NDArray> kept,
            List<NDArray> outputs,
            GradientRule rule) {
        checkCurrent(operator);
        if (inputs == null || kept == null || outputs == null || rule == null) {
            throw new IllegalArgumentException(
                    operator + ": the inputs, what is kept, the outputs, or the rule are null");
        }
        if (outputs.isEmpty()) {
            throw new IllegalArgumentException(operator + ": there is no output to differentiate");
        }
        push(new Boundary(operator, inputs, kept, outputs, rule, false, makers));
    }

    private void push(Boundary boundary) {
        boundaries.push(boundary);
        boundary.results().forEach(result -> makers.put(result, boundary));
    }

    /**
     * Records that an array holds what others do, converted to another element type: such as
     * weights of bfloat16 that are made of master weights of float32 in each forward pass.
     * Gradients that arrive at it go to the others, converted back. An operator that uses the array
     * may instead have the {@linkplain #originals originals} as inputs, and {@linkplain #record
     * differentiate} with respect to them in their own type, without rounding.
     *
     * @param originals matrices, or one array of any shape, at least one of which requires a
     *     gradient
     * @param converted their elements, side by side along the last dimension; it becomes a leaf
     *     that requires a gradient, so it must be of floating-point type, and new
     * @throws IllegalArgumentException if the shapes do not fit together, or the converted array is
     *     an original
     * @throws IllegalStateException if this scope is not the one that is open on this thread
     */
    public void recordConversion(List<NDArray> originals, NDArray converted) {
        String operator = "convert";
        checkCurrent(operator);
        Conversion.check(operator, originals, converted);
        List<NDArray> outputs = List.of(converted);
        push(new Boundary(operator, originals, List.of(), outputs, new Conversion(), true, makers));
    }

    /**
     * Returns what an array was made from, if that is known from {@link #recordConversion}.
     *
     * @param array the array
     * @return the originals, in their order; the array itself if it is no conversion, or if one of
     *     the originals has been closed
     */
    public List<NDArray> originals(NDArray array) {
        Boundary maker = makers.get(array);
        return maker == null ? List.of(array) : maker.originals(array);
    }

    /**
     * Computes the gradients of an array's sum: adds them to those of all leaves that it depends
     * on, through the operators called within this scope.
     *
     * @param target the array, mostly a loss
     */
    @Override
    public void backward(NDArray target) {
        try (NDManager manager = target.getManager().newSubManager(target.getDevice())) {
            NDArray ones = manager.ones(target.getShape());
            backward(List.of(target), List.of(Torch.cast(ones, Torch.scalarType(target))));
        }
    }

    /**
     * Computes the gradients of several arrays from the gradients of these.
     *
     * @param targets the arrays
     * @param gradients the gradient of each, of its shape and element type
     * @throws IllegalStateException if a gradient has reached an operator's result through which an
     *     earlier call has gone, or would have but for its failure; or if an array that an operator
     *     needs for its gradient has been changed in place
     */
    public void backward(List<NDArray> targets, List<NDArray> gradients) {
        checkCurrent("backward");
        if (targets == null || gradients == null || targets.size() != gradients.size()) {
            throw new IllegalArgumentException(
                    "backward: there must be a gradient for each target, not "
                            + (gradients == null ? "null" : gradients.size())
                            + " for "
                            + (targets == null ? "null" : targets.size()));
        }
        passed.removeIf(Boundary::isForgotten);
        List<Boundary> earlier = List.copyOf(passed);
        try (NDManager notes = NDManager.newBaseManager("PyTorch")) {
            earlier.forEach(boundary -> boundary.noteGradients(notes));
            goBack(targets, gradients);
            for (Boundary boundary : earlier) {
                if (boundary.isReachedAgain(notes)) {
                    throw new IllegalStateException(
                            boundary.operator()
                                    + ": a gradient has reached its result after an earlier"
                                    + " backward has gone through it or failed, and is lost; call"
                                    + " backward once, on the sum of the losses, and repeat the"
                                    + " forward pass if that has failed");
                }
            }
        }
    }

    private void goBack(List<NDArray> targets, List<NDArray> gradients) {
        boolean keep = !boundaries.isEmpty() || targets.size() > 1;
        try {
            for (int i = 0; i < targets.size(); i++) {
                NDArray target = targets.get(i);
                NDArray gradient = gradients.get(i);
                Boundary maker = makers.get(target);
                if (maker == null || !maker.take(target, gradient)) {
                    // It may become that of a leaf behind a view, to which autograd adds in place.
                    try (NDArray own = Torch.cast(gradient, Torch.scalarType(gradient))) {
                        JniUtils.backward((PtNDArray) target, (PtNDArray) own, keep, false);
                    }
                }
            }
            while (!boundaries.isEmpty()) {
                try (Boundary boundary = boundaries.pop()) {
                    boundary.results().forEach(makers::remove);
                    passed.add(boundary);
                    boundary.goBack();
                }
            }
        } finally {
            passed.addAll(boundaries); // If it has failed: nothing goes through these any more.
            discard();
        }
    }

    /**
     * Zeroes the gradients of the parameters, as it was said when the scope was opened.
     *
     * @throws UnsupportedOperationException if it was not said
     */
    @Override
    public void zeroGradients() {
        if (zero == null) {
            throw new UnsupportedOperationException(
                    "zeroGradients: this GradientScope does not know which are meant; say so when"
                            + " it is opened, or call trainer.newGradientCollector()");
        }
        zero.run();
    }

    private void checkOpen() {
        if (closed) {
            throw new IllegalStateException("this GradientScope is closed");
        }
    }

    private void checkCurrent(String operation) {
        checkOpen();
        if (CURRENT.get() != this) {
            throw new IllegalStateException(
                    operation
                            + ": this GradientScope is not the one that is open on this thread; it"
                            + " belongs to the thread that opened it");
        }
    }

    private void discard() {
        boundaries.forEach(Boundary::close);
        boundaries.clear();
        makers.clear();
    }

    /** Closes the scope, and gives the thread its mode back. Idempotent. */
    @Override
    public void close() {
        if (closed) {
            return;
        }
        if (opener != null) {
            checkCurrent("close");
            JniUtils.setGradMode(gradMode);
            CURRENT.remove();
        }
        closed = true;
        discard();
        passed.clear();
    }
}
