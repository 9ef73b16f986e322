// SPDX-License-Identifier: Apache-2.0
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
import org.djlx.nativeops.ContextLoader;
import org.djlx.nativeops.host.ProcessExit;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.Torch;
import org.djlx.nativeops.torch.TorchInPlace;

/**
 * A {@link GradientCollector} for ranks: records gradients on one thread, also through operators of
 * process groups. DJL's own collector exists once in a JVM. Each thread can have a scope, so ranks
 * may be threads.
 *
 * <pre>{@code
 * try (GradientScope scope = GradientScope.open()) {
 *     GatheredMatmul up = FusedOps.allGatherMatmul(x, List.of(w1), 0, group);
 *     NDArray hidden = Activation.gelu(up.outputs().get(0));
 *     NDArray y = FusedOps.matmulReduceScatter(hidden, w2, ReduceOp.SUM, 0, group);
 *     scope.backward(loss(y)); // computes the gradients of w1, w2 and x
 * }
 * }</pre>
 *
 * <h2>How it works</h2>
 *
 * <p>libtorch's autograd does not see operators of a group. An operator called within a scope runs
 * outside the graph, and its outputs are leaves from which a new graph begins. The scope remembers
 * these boundaries. {@link #backward} runs autograd from the target, then visits the boundaries in
 * reverse order of the calls. At each boundary the operator's {@linkplain GradientRule rule} turns
 * the gradients of the outputs into gradients of the inputs, and autograd continues from the
 * inputs. If an input is itself an operator's output, its gradient goes straight to that operator.
 *
 * <h2>Rules</h2>
 *
 * <ul>
 *   <li>Gradients are those of the sum of all ranks' targets.
 *   <li>All ranks call the same operators in a scope, with inputs that require gradients on all
 *       ranks or on none. Then each rank calls {@code backward} exactly once: the call visits every
 *       boundary, even if the target does not depend on it.
 *   <li>A gradient that reaches a boundary in a later call of {@code backward} is lost. That call
 *       throws {@link IllegalStateException} if the output is still open.
 *   <li>After a failed {@code backward}, gradients are incomplete: zero them and repeat the forward
 *       pass. If it failed on one rank only, the other ranks wait until that rank destroys its
 *       group or its process ends, or until their timeout. {@link
 *       org.djlx.collectives.ProcessGroups#run} and the trainer of {@link
 *       org.djlx.collectives.engine.P2pEngine} destroy the group immediately.
 *   <li>Outputs of operators are leaves that require a gradient, so libtorch refuses to change them
 *       in place while gradients are on.
 *   <li>Arrays that a rule needs, such as weights, and inputs that require a gradient must not
 *       change before {@code backward}, which throws {@link IllegalStateException} if they did.
 *       Only writes by libtorch's operators are detected, DJL's {@code muli} and {@code set} among
 *       them. After a write by a kernel or by an operation of a group, {@code backward} computes
 *       with the new values and reports no error.
 *   <li>If the input of a block is used several times, as with a residual connection, autograd runs
 *       through the graph before it once for each use. Begin the block with {@link
 *       DifferentiableCollectives#cut} to run through it once.
 *   <li>{@code a.reshape(shape).add(b.reshape(shape))} makes the gradients of {@code a} and {@code
 *       b} share memory; a gradient added to one of them later is then added to both (libtorch
 *       2.7.1, with any gradient collector). Reshape the sum instead.
 *   <li>Arrays that the thread creates from Java values, the factor of {@code x.mul(0.5f)} among
 *       them, keep their memory until the scope is closed, even if they are closed before. With
 *       DJL's own collector the garbage collector may free the factor before the backward pass
 *       reads it, on CPUs (DJL 0.35.1 and 0.36.0), and gradients are wrong without an error.
 * </ul>
 *
 * <p>A scope belongs to the thread on which it runs, and is not thread-safe.
 */
public final class GradientScope implements GradientCollector {

    private static final ThreadLocal<GradientScope> CURRENT = new ThreadLocal<>();

    private final Deque<Boundary> boundaries = new ArrayDeque<>(); // in reverse order of the calls
    // By an operator's output: the boundary that recorded the call.
    private final Map<NDArray, Boundary> makers = new IdentityHashMap<>();
    private final List<Boundary> passed = new ArrayList<>(); // by calls of backward
    private final KeptMemory memory = new KeptMemory();
    private boolean regather;
    private Thread opener; // null if the scope is used with within() only
    private boolean gradMode; // of the thread, before the scope was open on it
    private boolean closed;

    private GradientScope() {}

    /**
     * Opens a scope on this thread. Gradients are on until it is closed.
     *
     * @return the scope, to be closed by this thread
     * @throws IllegalStateException if one is open on this thread
     */
    public static GradientScope open() {
        if (CURRENT.get() != null) {
            throw new IllegalStateException(
                    "a GradientScope is already open on this thread; close it first");
        }
        GradientScope scope = new GradientScope();
        scope.enter();
        scope.opener = Thread.currentThread();
        return scope;
    }

    /**
     * Creates a scope that is open only while code {@linkplain #within runs within} it, on any
     * thread. Use it if the thread does other work between the forward and the backward pass.
     *
     * @return the scope, to be closed
     */
    public static GradientScope create() {
        return new GradientScope();
    }

    /**
     * Runs code on the calling thread within this scope, with gradients on. A scope that is open on
     * the thread is set aside meanwhile, so that a {@link GradientRule} can compute an operator
     * again.
     *
     * @throws IllegalStateException if this scope is closed, or open already
     */
    public <T> T within(Supplier<T> body) {
        checkOpen();
        if (memory.isEntered()) {
            throw new IllegalStateException("within: this GradientScope is open already");
        }
        GradientScope outer = CURRENT.get();
        enter();
        try {
            return body.get();
        } finally {
            exit();
            CURRENT.set(outer);
        }
    }

    private void enter() {
        ContextLoader.loadLibtorch();
        CURRENT.set(this);
        ProcessExit.beginUse();
        memory.enter();
        gradMode = JniUtils.isGradMode();
        JniUtils.setGradMode(true);
    }

    private void exit() {
        JniUtils.setGradMode(gradMode);
        memory.exit();
        ProcessExit.endUse();
        CURRENT.remove();
    }

    /** {@return the scope that is open on this thread, if there is one} */
    public static Optional<GradientScope> current() {
        return Optional.ofNullable(CURRENT.get());
    }

    /**
     * {@return the scope in which a call with this input must be recorded: this thread's open
     * scope, if gradients are on and the input requires a gradient; otherwise empty}
     *
     * @throws IllegalArgumentException if the call must be recorded, but no scope is open on this
     *     thread: the gradient would be lost
     */
    public static Optional<GradientScope> recording(String operator, String role, NDArray input) {
        if (!NoGradient.isRecorded(input)) {
            return Optional.empty();
        }
        GradientScope scope = CURRENT.get();
        if (scope == null) {
            throw new IllegalArgumentException(
                    String.format(
                            "%s: %s requires a gradient, which would be lost outside of a"
                                + " GradientScope. Call it within GradientScope.open() (a trainer"
                                + " of the engine PyTorch-P2P opens one), turn gradients off for"
                                + " inference, or pass %s.stopGradient()",
                            operator, role, role));
        }
        return Optional.of(scope);
    }

    /**
     * Sets how operators get the gathered array that their gradients need: kept from the forward
     * pass (the default), or gathered again in the backward pass, which takes less memory and more
     * time. All ranks must set the same value.
     */
    public GradientScope optRegather(boolean regather) {
        this.regather = regather;
        return this;
    }

    /**
     * {@return whether operators gather arrays again in the backward pass, instead of keeping them}
     */
    public boolean isRegathering() {
        return regather;
    }

    /**
     * Records a call of an operator that autograd does not see. Use it to make your own operator
     * differentiable, after running it with gradients off.
     *
     * @param inputs its inputs; inputs that require a gradient must not change until {@link
     *     #backward}, which checks them
     * @param kept arrays that the rule reads; they must not change until {@code backward} either
     * @param outputs its outputs: new arrays of floating-point type, which become leaves that
     *     require a gradient
     * @throws IllegalArgumentException if there is no output, or one is an input
     * @throws IllegalStateException if this scope is not the scope that is open on this thread
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
                    operator + ": inputs, kept, outputs or rule is null");
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
     * Records that an array is a conversion of others to another element type, for example bfloat16
     * weights that each forward pass makes from float32 master weights. Gradients of the converted
     * array are converted back and added to the gradients of the originals. An operator that uses
     * the converted array may instead {@linkplain #record record} the {@linkplain #originals
     * originals} as its inputs and compute their gradients in their own type, without rounding.
     *
     * @param originals matrices, or one array of any shape; at least one requires a gradient
     * @param converted the originals, concatenated along the last dimension: a new array of
     *     floating-point type, which becomes a leaf that requires a gradient
     * @throws IllegalArgumentException if the shapes do not fit together, or the converted array is
     *     an original
     * @throws IllegalStateException if this scope is not the scope that is open on this thread
     */
    public void recordConversion(List<NDArray> originals, NDArray converted) {
        String operator = "convert";
        checkCurrent(operator);
        Conversion.check(operator, originals, converted);
        List<NDArray> outputs = List.of(converted);
        push(new Boundary(operator, originals, List.of(), outputs, new Conversion(), true, makers));
    }

    /**
     * {@return the originals of an array that {@link #recordConversion} recorded, in their order;
     * the array itself if it is not a conversion, or if one of the originals is closed}
     */
    public List<NDArray> originals(NDArray array) {
        Boundary maker = makers.get(array);
        return maker == null ? List.of(array) : maker.originals(array);
    }

    /**
     * Computes the gradients of the sum of an array's elements and adds them to the gradients of
     * all leaves it depends on, through the operators called within this scope.
     */
    @Override
    public void backward(NDArray target) {
        backward(target, 1);
    }

    /** Computes as {@link #backward(NDArray)}, with gradients multiplied by a factor. */
    public void backward(NDArray target, double scale) {
        try (NDManager manager = target.getManager().newSubManager(target.getDevice())) {
            NDArray seed = manager.ones(target.getShape());
            if (scale != 1) {
                NoGradient.run(() -> TorchInPlace.mul(seed, scale));
            }
            backward(List.of(target), List.of(Torch.cast(seed, Torch.scalarType(target))));
        }
    }

    /**
     * Continues the backward pass from several arrays whose gradients are given.
     *
     * @param gradients the gradient of each, of its shape and element type
     * @throws IllegalStateException if a gradient reaches an operator's output after an earlier
     *     call has passed it or failed; or if an array that a rule needs was changed in place
     */
    public void backward(List<NDArray> targets, List<NDArray> gradients) {
        checkCurrent("backward");
        if (targets == null || gradients == null || targets.size() != gradients.size()) {
            throw new IllegalArgumentException(
                    "backward: each target needs one gradient, but there are %s for %s"
                            .formatted(
                                    gradients == null ? "null" : gradients.size(),
                                    targets == null ? "null" : targets.size()));
        }
        passed.removeIf(Boundary::isForgotten);
        if (passed.isEmpty()) {
            goBack(targets, gradients);
            return;
        }
        List<Boundary> earlier = List.copyOf(passed);
        try (NDManager notes = ContextLoader.pytorch().newBaseManager()) {
            earlier.forEach(boundary -> boundary.noteGradients(notes));
            goBack(targets, gradients);
            for (Boundary boundary : earlier) {
                if (boundary.isReachedAgain(notes)) {
                    throw new IllegalStateException(
                            boundary.operator()
                                    + ": a gradient has reached its output after an earlier"
                                    + " backward passed it or failed, so the gradient is lost; call"
                                    + " backward once, on the sum of the losses, and after a"
                                    + " failure repeat the forward pass");
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
                    // Copied: autograd may keep it as a leaf's gradient and add to it in place.
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
            passed.addAll(boundaries); // After a failure no gradient may pass these any more.
            discard();
        }
    }

    /**
     * Sets the gradients of all arrays of this JVM to zero, on all threads, as DJL's collector
     * does. {@code trainer.newGradientCollector()} has one that clears only the trainer's.
     */
    @Override
    public void zeroGradients() {
        try (NDManager any = ContextLoader.pytorch().newBaseManager()) {
            for (NDArray array : any.getParentManager().getManagedArrays()) {
                if (!array.isReleased() && Torch.requiresGradient(array)) {
                    zeroGradient((PtNDArray) array);
                }
            }
        }
    }

    private static void zeroGradient(PtNDArray array) {
        try (NDArray gradient = JniUtils.getGradient(array)) {
            if (gradient != null) {
                JniUtils.zeroGrad(array);
            }
        }
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
                            + ": this GradientScope is not open on this thread; only the thread"
                            + " that opened it may use it");
        }
    }

    private void discard() {
        boundaries.forEach(Boundary::close);
        boundaries.clear();
        makers.clear();
    }

    /** Closes the scope and restores the thread's gradient mode. Idempotent. */
    @Override
    public void close() {
        if (closed) {
            return;
        }
        if (opener != null) {
            checkCurrent("close");
            exit();
        }
        closed = true;
        discard();
        memory.release();
        passed.clear();
    }
}
