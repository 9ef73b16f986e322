// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.strategy;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.pytorch.engine.PtNDArray;
import ai.djl.pytorch.jni.JniUtils;
import ai.djl.util.PairList;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.stream.IntStream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.host.Required;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.TensorInfo;
import org.djlx.nativeops.torch.Torch;
import org.djlx.nativeops.torch.TorchInPlace;
import org.djlx.training.internal.Replica;

/**
 * Reduces one rank's gradients in buckets of several gradients, as PyTorch's DDP: each by the
 * trainer's {@link GradientHook}.
 *
 * <ul>
 *   <li>All ranks reduce the buckets in the same order. The last parameters come first, because the
 *       backward pass computes their gradients first.
 *   <li>A bucket is issued once all its gradients are complete and all buckets before it are
 *       issued; at the latest after the backward pass, or, if that does not reduce, after a later
 *       one or in the step.
 *   <li>Gradients are reduced in place.
 *   <li>If another backward pass begins before the step, the reduced gradients are moved to
 *       separate sums ({@code carried}), the pass begins without gradients, and the sums are added
 *       to its reduced gradients.
 * </ul>
 */
final class GradientBuckets {

    private static final class Bucket {

        private final List<NDArray> parameters = new ArrayList<>();
        private final List<NDArray> gradients = new ArrayList<>();
        private int ready;
        private Runnable completion; // waits for the running reduction; null if none runs

        void clear() {
            gradients.clear();
            ready = 0;
        }

        void complete() {
            if (completion != null) {
                Runnable last = completion;
                completion = null; // Even if it fails: other ranks have completed the bucket.
                last.run();
            }
        }
    }

    private final ProcessGroup group; // null if it is the only rank
    private final ReduceOp op;
    private final GradientHook hook;
    private final long bucketBytes;
    private final NDManager parent;
    private final Map<NDArray, NDArray> carried = new IdentityHashMap<>(); // by parameter
    private final Map<NDArray, Bucket> bucketOf = new IdentityHashMap<>();
    private List<NDArray> planned = List.of(); // the parameters of the last plan
    private List<Bucket> plan = List.of(); // their buckets
    private List<Bucket> buckets = List.of(); // of the current pass: the plan, or none
    private int issued;
    private boolean apart; // whether no two of the issued gradients share memory
    private NDManager manager; // of the issued buckets' gradients; null if none is issued

    GradientBuckets(
            ProcessGroup group, ReduceOp op, ParameterStrategy.Options options, NDManager parent) {
        this.group = group;
        this.op = op;
        hook = options.hook().ofRank();
        bucketBytes = options.bucketBytes();
        this.parent = parent;
    }

    /**
     * Divides the trained parameters, in the block's order, into buckets without gradients.
     * Requires that no bucket is issued.
     */
    private void plan(List<NDArray> parameters) {
        if (!isSame(parameters, planned)) {
            plan = new ArrayList<>();
            bucketOf.clear();
            int[] indices = indices(parameters);
            for (int i = parameters.size() - 1; i >= 0; i--) {
                if (indices[i] == plan.size()) {
                    plan.add(new Bucket());
                }
                Bucket bucket = plan.get(indices[i]);
                bucket.parameters.add(parameters.get(i));
                bucketOf.put(parameters.get(i), bucket);
            }
            planned = parameters;
        }
        plan.forEach(Bucket::clear);
        buckets = plan;
    }

    private static boolean isSame(List<NDArray> one, List<NDArray> other) {
        return one.size() == other.size()
                && IntStream.range(0, one.size()).allMatch(i -> one.get(i) == other.get(i));
    }

    /** Returns the bucket of each parameter; buckets are in reverse order of the parameters. */
    int[] indices(List<NDArray> parameters) {
        int[] indices = new int[parameters.size()];
        int index = -1;
        ScalarType type = null;
        long bytes = 0;
        for (int i = parameters.size() - 1; i >= 0; i--) {
            TensorInfo info = Torch.info(parameters.get(i));
            if (index < 0 || info.type() != type || bytes + info.byteSize() > bucketBytes) {
                index++;
                bytes = 0;
            }
            type = info.type();
            bytes += info.byteSize();
            indices[i] = index;
        }
        return indices;
    }

    /** As {@link #indices}, by parameter, in a map that the caller may change. */
    Map<NDArray, Integer> indicesByArray(List<NDArray> parameters) {
        int[] indices = indices(parameters);
        Map<NDArray, Integer> result = new IdentityHashMap<>();
        for (int i = 0; i < indices.length; i++) {
            result.put(parameters.get(i), indices[i]);
        }
        return result;
    }

    /**
     * Begins a backward pass: moves gradients that earlier passes have reduced to {@code carried}.
     */
    void begin(List<NDArray> parameters) {
        NoGradient.run(
                () -> {
                    // A single rank's gradients stay where the pass adds to them.
                    for (Bucket bucket : buckets.subList(0, group == null ? 0 : issued)) {
                        bucket.complete();
                        for (int i = 0; i < bucket.parameters.size(); i++) {
                            carry(bucket.parameters.get(i), bucket.gradients.get(i));
                            clear(bucket.parameters.get(i));
                        }
                    }
                });
        clearIssued();
        plan(parameters);
    }

    private void carry(NDArray parameter, NDArray gradient) {
        NDArray sum = carried.get(parameter); // not null if the last backward pass has failed
        if (sum == null) {
            sum = Torch.cast(gradient, Torch.scalarType(gradient));
            sum.attach(parent);
            carried.put(parameter, sum);
        } else {
            TorchInPlace.add(sum, gradient);
        }
    }

    /**
     * Removes a gradient; the next pass then stores its gradient instead of adding it. Sets the
     * gradient to zero instead if the program holds it, or if the parameter is not float32: DJL
     * shows a missing gradient as float32 zeros.
     */
    static void clear(NDArray parameter) {
        if (Torch.scalarType(parameter) == ScalarType.FLOAT32
                && Torch.gradientHolders(parameter) == 0) {
            Torch.setGradient(parameter, null);
        } else {
            JniUtils.zeroGrad((PtNDArray) parameter);
        }
    }

    /** Marks the gradients of parameters as complete, and issues the buckets that are ready. */
    void ready(Collection<NDArray> parameters) {
        for (NDArray parameter : parameters) {
            Bucket bucket = bucketOf.get(parameter);
            if (bucket != null) {
                bucket.ready++;
            }
        }
        NoGradient.run(
                () -> {
                    while (issued < buckets.size() && isReady(buckets.get(issued))) {
                        issueNext();
                    }
                });
    }

    private static boolean isReady(Bucket bucket) {
        return bucket.ready == bucket.parameters.size();
    }

    private void issueNext() {
        if (manager == null) {
            manager = parent.newSubManager();
        }
        Bucket bucket = buckets.get(issued);
        issued++; // Even if the hook fails: other ranks have issued the bucket.
        for (NDArray parameter : bucket.parameters) {
            bucket.gradients.add(gradient(manager, parameter, group != null));
        }
        if (group != null) {
            GradientBucket view =
                    new GradientBucket(
                            issued - 1,
                            List.copyOf(bucket.parameters),
                            List.copyOf(bucket.gradients),
                            group,
                            op,
                            parent);
            Work work = Required.argument("the Work of the gradient hook", hook.reduce(view));
            bucket.completion =
                    () -> {
                        Replica.complete(view.gradients().get(0).getDevice(), work);
                        hook.finish(view, work);
                    };
        }
    }

    /**
     * Issues the remaining buckets and waits for all. Returns the gradient of each parameter, in
     * the order of the buckets; it may be changed in place until {@link #reset}.
     */
    PairList<NDArray, NDArray> reduce(List<NDArray> parameters) {
        if (issued == 0) {
            plan(parameters);
        }
        while (issued < buckets.size()) {
            issueNext();
        }
        if (!apart) {
            requireApart();
        }
        // No map: NDArray.equals compares elements.
        PairList<NDArray, NDArray> reduced = new PairList<>();
        for (Bucket bucket : buckets) {
            bucket.complete();
            for (int i = 0; i < bucket.parameters.size(); i++) {
                NDArray parameter = bucket.parameters.get(i);
                NDArray sum = carried.remove(parameter);
                if (sum != null) {
                    TorchInPlace.add(bucket.gradients.get(i), sum);
                    sum.close();
                }
                reduced.add(parameter, bucket.gradients.get(i));
            }
        }
        return reduced;
    }

    private void requireApart() {
        Map<Long, NDArray> byAddress = new HashMap<>();
        for (Bucket bucket : buckets) {
            for (NDArray gradient : bucket.gradients) {
                NDArray other = byAddress.put(Torch.dataPointer(gradient), gradient);
                if (other != null && gradient.size() > 0) {
                    throw new IllegalStateException(
                            String.format(
                                    "step: the gradients of two parameters, of shapes %s and %s,"
                                        + " share memory, so each would change the other. A sum"
                                        + " a.reshape(shape).add(b.reshape(shape)) of parameters"
                                        + " does that: reshape the sum instead",
                                    other.getShape(), gradient.getShape()));
                }
            }
        }
        apart = true;
    }

    /**
     * Returns the reduced gradient of a parameter, after {@link #reduce}; empty if the parameter is
     * not trained, and after the step.
     */
    Optional<NDArray> reduced(NDArray parameter) {
        Bucket bucket = issued == 0 ? null : bucketOf.get(parameter);
        for (int i = 0; bucket != null && i < bucket.parameters.size(); i++) {
            if (bucket.parameters.get(i) == parameter) {
                return Optional.of(bucket.gradients.get(i));
            }
        }
        return Optional.empty();
    }

    static boolean isZero(NDArray gradient) {
        CurrentStreams.await(gradient.getDevice());
        try (NDArray different = gradient.neq(0);
                NDArray any = different.any()) {
            return !any.getBoolean();
        }
    }

    /** Waits for the issued buckets, then drops all buckets and sums. */
    void reset() {
        buckets.subList(0, issued).forEach(Bucket::complete);
        clearIssued();
        buckets = List.of();
        carried.values().forEach(NDArray::close);
        carried.clear();
    }

    private void clearIssued() {
        issued = 0;
        apart = false;
        if (manager != null) {
            manager.close();
            manager = null;
        }
    }

    /**
     * Returns an array's gradient, or zeros if it has none on this rank. {@code sent}: returns a
     * view, because a running all-reduce holds its tensors, and a view does not count in {@link
     * Torch#gradientHolders}.
     */
    private static NDArray gradient(NDManager manager, NDArray array, boolean sent) {
        NDArray own = JniUtils.getGradient((PtNDArray) array);
        if (own == null) {
            own = Torch.zerosLike(array);
        } else if (sent) {
            try (NDArray gradient = own) {
                own = gradient.stopGradient();
            }
        }
        own.attach(manager);
        return own;
    }
}
