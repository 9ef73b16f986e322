/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.nn;

import ai.djl.MalformedModelException;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Parameter;
import ai.djl.training.ParameterStore;
import ai.djl.training.initializer.Initializer;
import ai.djl.util.PairList;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.gradient.DifferentiableCollectives;
import org.djlx.fusedops.FusedOps;
import org.djlx.nativeops.NoGradient;
import org.djlx.nativeops.Torch;

/**
 * A block whose parameters are divided among the ranks of a group, as in Megatron-LM (Shoeybi et
 * al., 2019, <a href="https://arxiv.org/abs/1909.08053">arXiv:1909.08053</a>). Each rank has a
 * block of its own, which it alone uses, and all ranks call it alike.
 *
 * <p>With sequence parallelism (Korthikanti et al., 2022, <a
 * href="https://arxiv.org/abs/2205.05198">arXiv:2205.05198</a>) activations between parallel
 * regions are divided too, along their first dimension, the tokens. Then the fused operators gather
 * and scatter them; otherwise each rank has all tokens there, the same on all, and sums are
 * all-reduced.
 *
 * <p>In training it is called within a {@link org.djlx.collectives.gradient.GradientScope}, which a
 * trainer of the engine {@code PyTorch-P2P} opens. With sequence parallelism gradients are those of
 * the sum of the ranks' losses, each over its own tokens; otherwise of the loss that all ranks
 * compute alike. Either way a parameter that is not divided has the same gradient on all ranks.
 *
 * <p>A full parameter has the shape of the same block without division. Initialisers make full
 * ones: those of rank 0 count, of which each rank keeps its part. Saving collects them and loading
 * divides them, so a checkpoint does not depend on the number of ranks; all ranks save, each the
 * same, and all ranks load.
 */
public abstract class ShardedBlock extends AbstractBlock {

    private static final byte VERSION = 1;

    /** How a parameter lies on the ranks. */
    private static final class Layout {

        private final Parameter parameter;
        private final int axis; // of the full one, along which it is divided; -1 if it is not
        private final boolean transposed; // from the full one to a rank's part
        private Shape full;

        Layout(Parameter parameter, int axis, boolean transposed) {
            this.parameter = parameter;
            this.axis = axis;
            this.transposed = transposed;
        }
    }

    private final ProcessGroup group;
    private final boolean sequenceParallel;
    private final Map<String, Layout> layouts = new LinkedHashMap<>();

    ShardedBlock(Builder<?> builder) {
        super(VERSION);
        if (builder.group == null) {
            throw new IllegalArgumentException(
                    getClass().getSimpleName() + ": the group is not set; call setGroup");
        }
        group = builder.group;
        sequenceParallel = builder.sequenceParallel;
    }

    /**
     * Builds a block.
     *
     * @param <B> the builder
     */
    public abstract static class Builder<B extends Builder<B>> {

        private ProcessGroup group;
        private boolean sequenceParallel;

        Builder() {}

        abstract B self();

        /**
         * Sets the group whose ranks share the block.
         *
         * @param group this rank's handle, which stays the caller's
         * @return this builder
         */
        public B setGroup(ProcessGroup group) {
            this.group = group;
            return self();
        }

        /**
         * Sets whether activations outside of parallel regions are divided along their first
         * dimension.
         *
         * @param sequenceParallel whether they are; not unless set
         * @return this builder
         */
        public B optSequenceParallel(boolean sequenceParallel) {
            this.sequenceParallel = sequenceParallel;
            return self();
        }
    }

    final ProcessGroup group() {
        return group;
    }

    final boolean isSequenceParallel() {
        return sequenceParallel;
    }

    /**
     * Adds a parameter.
     *
     * @param axis the dimension of the full one along which it is divided; -1 for not
     * @param transposed whether a rank's part is kept transposed
     */
    final Parameter add(String name, Parameter.Type type, int axis, boolean transposed) {
        Parameter parameter = addParameter(Parameter.builder().setName(name).setType(type).build());
        layouts.put(name, new Layout(parameter, axis, transposed));
        return parameter;
    }

    /** Sets a parameter's shape, from that of the full one. */
    final void setFullShape(Parameter parameter, long... sizes) {
        Layout layout = layouts.get(parameter.getName());
        layout.full = new Shape(sizes);
        parameter.setShape(partShape(layout));
        Initializer initializer = parameter.getInitializer();
        if (!(initializer instanceof PartInitializer)) {
            parameter.setInitializer(new PartInitializer(layout, initializer));
        }
    }

    /** Makes a full parameter, of which it keeps this rank's part. */
    private final class PartInitializer implements Initializer {

        private final Layout layout;
        private final Initializer ofFull;

        PartInitializer(Layout layout, Initializer ofFull) {
            this.layout = layout;
            this.ofFull = ofFull;
        }

        @Override
        public NDArray initialize(NDManager manager, Shape shape, DataType type) {
            try (NDManager temporary = manager.newSubManager()) {
                NDArray full = ofFull.initialize(temporary, layout.full, type);
                group.broadcast(full, 0).await();
                return part(manager, layout, full);
            }
        }
    }

    private Shape partShape(Layout layout) {
        long[] sizes = layout.full.getShape().clone();
        if (layout.axis >= 0) {
            checkDivisible(layout.parameter.getName(), sizes[layout.axis]);
            sizes[layout.axis] /= group.worldSize();
        }
        return layout.transposed ? new Shape(sizes[1], sizes[0]) : new Shape(sizes);
    }

    /** Checks that a size can be divided among the ranks. */
    final void checkDivisible(String what, long size) {
        if (size % group.worldSize() != 0) {
            throw new IllegalArgumentException(
                    String.format(
                            "%s: the size %d of %s cannot be divided among the %d ranks of %s",
                            getClass().getSimpleName(),
                            size,
                            what,
                            group.worldSize(),
                            group.name()));
        }
    }

    /** Returns this rank's part of a full array, contiguous. */
    private NDArray part(NDManager manager, Layout layout, NDArray full) {
        return NoGradient.get(
                () -> {
                    NDArray part = full;
                    if (layout.axis >= 0) {
                        long size = full.getShape().get(layout.axis) / group.worldSize();
                        String rows = size * group.rank() + ":" + size * (group.rank() + 1);
                        part = full.get(":, ".repeat(layout.axis) + rows);
                    }
                    part = layout.transposed ? part.transpose() : part;
                    NDArray copy = Torch.cast(part, Torch.scalarType(part));
                    copy.attach(manager);
                    return copy;
                });
    }

    private Layout layout(String name) {
        Layout layout = layouts.get(name);
        if (layout == null) {
            throw new IllegalArgumentException(
                    String.format(
                            "%s: there is no parameter '%s'; there are %s",
                            getClass().getSimpleName(), name, layouts.keySet()));
        }
        return layout;
    }

    /**
     * Collects a parameter from all ranks, which all call this.
     *
     * @param name the parameter's name
     * @param manager the manager of the result
     * @return the full parameter
     */
    public final NDArray full(String name, NDManager manager) {
        Layout layout = layout(name);
        return NoGradient.get(
                () -> {
                    try (NDManager temporary = manager.newSubManager()) {
                        NDArray own = layout.parameter.getArray();
                        NDArray alias = Torch.alias(temporary, own);
                        NDArray part = layout.transposed ? alias.transpose() : alias;
                        NDArray full =
                                layout.axis < 0
                                        ? Torch.cast(part, Torch.scalarType(part))
                                        : DifferentiableCollectives.allGather(
                                                part, layout.axis, group);
                        full.attach(manager);
                        return full;
                    }
                });
    }

    /**
     * Sets this rank's part of a parameter; the block is initialised before.
     *
     * @param name the parameter's name
     * @param full the full parameter, of its shape and element type
     * @throws IllegalArgumentException if it has another shape
     */
    public final void setFull(String name, NDArray full) {
        Layout layout = layout(name);
        NDArray own = layout.parameter.getArray();
        if (layout.full != null && !layout.full.equals(full.getShape())) {
            throw new IllegalArgumentException(
                    String.format(
                            "%s: the parameter '%s' has the full shape %s, not %s",
                            getClass().getSimpleName(), name, layout.full, full.getShape()));
        }
        try (NDManager temporary = own.getManager().newSubManager()) {
            NDArray part = part(temporary, layout, full);
            NoGradient.run(() -> Torch.copy(own, part));
        }
    }

    @Override
    public void saveParameters(DataOutputStream os) throws IOException {
        os.write(VERSION);
        saveMetadata(os);
        for (Layout layout : layouts.values()) {
            String name = layout.parameter.getName();
            os.writeUTF(name);
            try (NDManager temporary = layout.parameter.getArray().getManager().newSubManager()) {
                byte[] bytes = full(name, temporary).encode();
                os.write(bytes);
            }
        }
    }

    @Override
    public void loadParameters(NDManager manager, DataInputStream is)
            throws IOException, MalformedModelException {
        loadMetadata(is.readByte(), is);
        for (Layout layout : layouts.values()) {
            String name = is.readUTF();
            if (!name.equals(layout.parameter.getName())) {
                throw new MalformedModelException(
                        String.format(
                                "%s: the checkpoint has the parameter '%s' where '%s' was expected",
                                getClass().getSimpleName(), name, layout.parameter.getName()));
            }
            try (NDArray full = manager.decode(is)) {
                if (layout.parameter.isInitialized()) {
                    setFull(name, full);
                } else {
                    layout.full = full.getShape();
                    partShape(layout); // Says if it cannot be divided.
                    layout.parameter.setShape(null);
                    layout.parameter.setArray(part(manager, layout, full));
                }
            }
        }
    }

    @Override
    protected final NDList forwardInternal(
            ParameterStore store,
            NDList inputs,
            boolean training,
            PairList<String, Object> params) {
        NDArray x = inputs.singletonOrThrow();
        // Threads have gradients on unless they are switched off.
        NDArray y =
                training ? forward(store, x, true) : NoGradient.get(() -> forward(store, x, false));
        return new NDList(y);
    }

    abstract NDArray forward(ParameterStore store, NDArray x, boolean training);

    /** Returns a parameter that all ranks have, where each uses it for tokens of its own. */
    final NDArray shared(ParameterStore store, Parameter parameter, NDArray x, boolean training) {
        NDArray value = store.getValue(parameter, x.getDevice(), training);
        return sequenceParallel && training
                ? DifferentiableCollectives.enterParallel(value, group)
                : value;
    }

    /** Multiplies all tokens with this rank's columns. */
    final List<NDArray> intoRegion(NDArray x, List<NDArray> weights) {
        if (sequenceParallel) {
            return FusedOps.allGatherMatmul(x, weights, 0, group, false).outputs();
        }
        NDArray entered = DifferentiableCollectives.enterParallel(x, group);
        return weights.stream().map(weight -> product(entered, weight)).toList();
    }

    /** Multiplies with this rank's rows, and adds up. */
    final NDArray outOfRegion(NDArray x, NDArray weight) {
        return sequenceParallel
                ? FusedOps.matmulReduceScatter(x, weight, ReduceOp.SUM, 0, group)
                : DifferentiableCollectives.leaveParallel(product(x, weight), group);
    }

    private static NDArray product(NDArray x, NDArray weight) {
        Shape shape = x.getShape();
        int last = shape.dimension() - 1;
        if (last == 1) {
            return x.matMul(weight);
        }
        NDArray matrix = x.reshape(shape.slice(0, last).size(), shape.get(last));
        return matrix.matMul(weight).reshape(shape.slice(0, last).add(weight.getShape().get(1)));
    }

    /** Returns a shape with another last size, and the first one times or through the ranks. */
    final Shape outputShape(Shape input, long last, boolean gathered, boolean scattered) {
        long[] sizes = input.getShape().clone();
        sizes[sizes.length - 1] = last;
        if (sequenceParallel && gathered) {
            sizes[0] *= group.worldSize();
        }
        if (sequenceParallel && scattered) {
            sizes[0] /= group.worldSize();
        }
        return new Shape(sizes);
    }
}
