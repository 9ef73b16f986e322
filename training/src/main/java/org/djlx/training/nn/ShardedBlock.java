// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.nn;

import ai.djl.MalformedModelException;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Parameter;
import ai.djl.nn.norm.Dropout;
import ai.djl.training.ParameterStore;
import ai.djl.training.initializer.Initializer;
import ai.djl.util.PairList;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.engine.DividedBlock;
import org.djlx.collectives.gradient.DifferentiableCollectives;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.fusedops.FusedOps;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.djlx.training.internal.DataTypes;

/**
 * Base class of blocks whose parameters are divided among the ranks of a group, as in Megatron-LM
 * (Shoeybi et al., 2019, <a href="https://arxiv.org/abs/1909.08053">arXiv:1909.08053</a>). Each
 * rank has its own block. All ranks make the same calls in the same order.
 *
 * <p><b>Activations.</b> Between parallel regions:
 *
 * <ul>
 *   <li>With sequence parallelism (Korthikanti et al., 2022, <a
 *       href="https://arxiv.org/abs/2205.05198">arXiv:2205.05198</a>) they are divided along their
 *       first dimension, the tokens. The fused operators gather and scatter them.
 *   <li>Without it, each rank has all tokens, and sums are all-reduced.
 * </ul>
 *
 * <p><b>Gradients.</b> Train within a {@link org.djlx.collectives.gradient.GradientScope}, which a
 * trainer of the engine {@code PyTorch-P2P} opens.
 *
 * <ul>
 *   <li>With sequence parallelism the loss is the sum of the ranks' losses, each over its own
 *       tokens. Without it, all ranks compute the same loss.
 *   <li>A parameter that several ranks hold gets the gradient of the undivided block on all these
 *       ranks, and so stays equal on them.
 * </ul>
 *
 * <p><b>Mixed precision.</b> Matmuls compute in the element type of the activations. Set it to
 * bfloat16 by {@link ParallelEmbedding.Builder#optComputeType}, and keep parameters in float32 as
 * master weights (Micikevicius et al., 2017, <a
 * href="https://arxiv.org/abs/1710.03740">arXiv:1710.03740</a>).
 *
 * <ul>
 *   <li>A weight of another type is converted in each forward pass, and its gradient is converted
 *       back.
 *   <li>Optimizers, checkpoints and the synchronisation of gradients use float32.
 *   <li>With sequence parallelism on a GPU the matmuls add to float32 gradients without rounding to
 *       16 bits.
 * </ul>
 *
 * <p><b>Full parameters</b> have the shapes of the same block without division.
 *
 * <ul>
 *   <li>Rank 0 initialises the full parameter, and each rank keeps its part. So a seed gives the
 *       same parameters for any number of ranks.
 *   <li>Saving collects full parameters and loading divides them. So a checkpoint does not depend
 *       on the number of ranks.
 *   <li>All ranks save, and write the same bytes. All ranks load. {@code Model.save} of the engine
 *       {@code PyTorch-P2P}, which all ranks call, writes one file.
 * </ul>
 */
public abstract class ShardedBlock extends AbstractBlock implements DividedBlock {

    private static final byte VERSION = 1;

    /**
     * How a parameter is divided.
     *
     * @param axis the dimension of the full parameter that is divided; -1 for none
     * @param transposed whether a rank stores its part transposed
     * @param padded whether a size that is not divisible is padded with zeros; otherwise it is
     *     refused
     * @param parts the number of parts, which divides the world size; neighbouring ranks share a
     *     part. 0 for one part for each rank
     */
    record Division(int axis, boolean transposed, boolean padded, int parts) {

        /** Each rank has the full parameter. */
        static final Division NONE = new Division(-1, false, false, 0);

        /** Each rank has some rows. */
        static final Division ROWS = new Division(0, false, false, 0);

        /** Each rank has some rows, stored as columns. */
        static final Division ROWS_TRANSPOSED = new Division(0, true, false, 0);

        /** Each rank has some columns, stored as rows. */
        static final Division COLUMNS_TRANSPOSED = new Division(1, true, false, 0);

        Division withPadding(boolean wanted) {
            return new Division(axis, transposed, wanted, parts);
        }

        /** Each rank has the full parameter for its own heads. Gradients are summed over ranks. */
        static final Division SHARED = ROWS.into(1);

        Division into(int number) {
            return new Division(axis, transposed, padded, number);
        }
    }

    /** A parameter and its division among the ranks. */
    private final class Layout {

        private final Parameter parameter;
        private final Division division;
        private final int parts;
        private final int part; // index of this rank's part
        private Shape full;

        Layout(Parameter parameter, Division division) {
            this.parameter = parameter;
            this.division = division;
            parts = division.parts() == 0 ? group.worldSize() : division.parts();
            part = group.rank() / (group.worldSize() / parts);
        }

        boolean isDivided() {
            return division.axis() >= 0;
        }

        private long size() {
            return full.get(division.axis());
        }

        long partSize() {
            if (!division.padded() && size() % parts != 0) {
                throw indivisible(parameter.getName(), size(), parts);
            }
            return (size() + parts - 1) / parts;
        }

        Shape partShape() {
            long[] sizes = full.getShape().clone();
            if (isDivided()) {
                sizes[division.axis()] = partSize();
            }
            return division.transposed() ? new Shape(sizes[1], sizes[0]) : new Shape(sizes);
        }

        /** Returns this rank's part of a full array, contiguous. */
        NDArray cut(NDManager manager, NDArray whole) {
            return NoGradient.get(
                    () -> {
                        NDArray own = whole;
                        if (isDivided()) {
                            long size = partSize();
                            NDArray padded = resized(whole, size * parts);
                            own = rows(padded, size * part, size * (part + 1));
                        }
                        own = division.transposed() ? own.transpose() : own;
                        NDArray copy = Torch.cast(own, Torch.scalarType(own));
                        copy.attach(manager);
                        return copy;
                    });
        }

        /** Returns the full array, gathered from all ranks. */
        NDArray join(NDArray own) {
            NDArray mine = division.transposed() ? own.transpose() : own;
            if (!isDivided()) {
                return Torch.cast(mine, Torch.scalarType(mine));
            }
            NDArray all = DifferentiableCollectives.allGather(mine, division.axis(), group);
            if (parts < group.worldSize()) {
                NDList different = new NDList();
                long size = partSize();
                for (int i = 0; i < parts; i++) {
                    long first = size * i * (group.worldSize() / parts);
                    different.add(rows(all, first, first + size));
                }
                return NDArrays.concat(different, division.axis());
            }
            NDArray full = resized(all, size());
            return Torch.cast(full, Torch.scalarType(full));
        }

        private NDArray rows(NDArray array, long from, long to) {
            return array.get(":, ".repeat(division.axis()) + from + ":" + to);
        }

        /** Returns an array with another size: cut off, or padded with zeros. */
        private NDArray resized(NDArray array, long size) {
            int axis = division.axis();
            long[] sizes = array.getShape().getShape().clone();
            if (sizes[axis] >= size) {
                return sizes[axis] == size ? array : rows(array, 0, size);
            }
            sizes[axis] = size - sizes[axis];
            NDManager manager = array.getManager();
            try (NDArray zeros = Torch.zeros(manager, new Shape(sizes), Torch.scalarType(array))) {
                return array.concat(zeros, axis);
            }
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

    public abstract static class Builder<B extends Builder<B>> {

        private ProcessGroup group;
        private boolean sequenceParallel;

        Builder() {}

        @SuppressWarnings("unchecked") // B is the type of this builder.
        final B self() {
            return (B) this;
        }

        final <C extends Builder<C>> C shared(C other) {
            return other.setGroup(group).optSequenceParallel(sequenceParallel);
        }

        /**
         * Sets this rank's handle, which the caller closes, on the group whose ranks share the
         * block. Required.
         */
        public B setGroup(ProcessGroup group) {
            this.group = group;
            return self();
        }

        /**
         * Sets whether activations outside of parallel regions are divided along their first
         * dimension; default false.
         */
        public B optSequenceParallel(boolean sequenceParallel) {
            this.sequenceParallel = sequenceParallel;
            return self();
        }
    }

    @Override
    public final ProcessGroup group() {
        return group;
    }

    @Override
    public final int copies(Parameter parameter) {
        Layout layout = layout(parameter.getName());
        return layout.isDivided() ? group.worldSize() / layout.parts : group.worldSize();
    }

    final boolean isSequenceParallel() {
        return sequenceParallel;
    }

    final Parameter add(String name, Parameter.Type type, Division division) {
        Parameter parameter = addParameter(Parameter.builder().setName(name).setType(type).build());
        layouts.put(name, new Layout(parameter, division));
        return parameter;
    }

    /** Sets the shape of a parameter from the shape of the full parameter. */
    final void setFullShape(Parameter parameter, long... sizes) {
        Layout layout = layouts.get(parameter.getName());
        layout.full = new Shape(sizes);
        parameter.setShape(layout.partShape());
        Initializer initializer = parameter.getInitializer();
        if (!(initializer instanceof PartInitializer)) {
            parameter.setInitializer(new PartInitializer(layout, initializer));
        }
    }

    private final class PartInitializer implements Initializer {

        private final Layout layout;
        private final Initializer ofFull;

        PartInitializer(Layout layout, Initializer ofFull) {
            this.layout = layout;
            this.ofFull = ofFull;
        }

        @Override
        public NDArray initialize(NDManager manager, Shape shape, DataType type) {
            DataTypes.requireCreatable("initialize", type);
            try (NDManager temporary = manager.newSubManager()) {
                // Ranks that are threads share a random generator: only one of them uses it.
                NDArray full =
                        group.rank() == 0
                                ? ofFull.initialize(temporary, layout.full, type)
                                : temporary.zeros(layout.full, type);
                group.broadcast(full, 0).await();
                return layout.cut(manager, full);
            }
        }
    }

    final void checkDivisible(String what, long size) {
        if (size % group.worldSize() != 0) {
            throw indivisible(what, size, group.worldSize());
        }
    }

    private IllegalArgumentException indivisible(String what, long size, int parts) {
        return new IllegalArgumentException(
                String.format(
                        "%s: %s (%d) must be divisible by the %d %s of %s",
                        getClass().getSimpleName(),
                        what,
                        size,
                        parts,
                        parts == group.worldSize() ? "ranks" : "parts on the ranks",
                        group.name()));
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

    /** Gathers a full parameter into {@code manager}. All ranks call this. */
    public final NDArray full(String name, NDManager manager) {
        Layout layout = layout(name);
        return NoGradient.get(
                () -> {
                    try (NDManager temporary = manager.newSubManager()) {
                        NDArray own = layout.parameter.getArray();
                        NDArray full = layout.join(Torch.alias(temporary, own));
                        full.attach(manager);
                        return full;
                    }
                });
    }

    /**
     * Sets this rank's part of a full parameter, which has its full shape and element type. The
     * block must be initialised.
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
            NDArray part = layout.cut(temporary, full);
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
                byte[] bytes = DataTypes.storable(full(name, temporary)).encode();
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
                    take(name, full, manager);
                }
            }
        }
    }

    /** Sets a parameter that is not initialised to this rank's part of a full one. */
    final void take(String name, NDArray full, NDManager manager) {
        Layout layout = layout(name);
        layout.full = full.getShape();
        NDArray part = layout.cut(manager, full);
        layout.parameter.setShape(null);
        layout.parameter.setArray(part);
    }

    @Override
    protected final NDList forwardInternal(
            ParameterStore store,
            NDList inputs,
            boolean training,
            PairList<String, Object> params) {
        NDArray x = inputs.singletonOrThrow();
        // DJL leaves gradients on in threads that do not train.
        NDArray y =
                training ? forward(store, x, true) : NoGradient.get(() -> forward(store, x, false));
        return new NDList(y);
    }

    abstract NDArray forward(ParameterStore store, NDArray x, boolean training);

    @Override
    protected void initializeChildBlocks(NDManager manager, DataType type, Shape... shapes) {
        getChildren().values().forEach(child -> child.initialize(manager, type, shapes));
    }

    /**
     * A linear layer: a weight W, and optionally a bias and a {@linkplain Lora low-rank adapter} of
     * A and B. The parameters' names begin with the name of the layer.
     */
    final class Projection {

        private final Parameter weight;
        private final Parameter bias; // null if there is none
        private final Parameter a; // null if there is no adapter
        private final Parameter b;
        private final Lora lora;
        private final Optional<Dropout> dropout; // of the adapter's input

        /**
         * {@code division} is by rows for {@link #enterRegion}, by columns for {@link
         * #leaveRegion}; {@code lora} is null for none.
         */
        Projection(String name, String bias, Division division, Lora lora) {
            boolean entering = division.axis() == 0;
            Division shared = Division.ROWS_TRANSPOSED.into(1);
            Division ofBias = new Division(0, false, division.padded(), division.parts());
            this.lora = lora != null && lora.targets().contains(name) ? lora : null;
            weight = add(name, Parameter.Type.WEIGHT, division);
            this.bias =
                    bias == null
                            ? null
                            : add(bias, Parameter.Type.BIAS, entering ? ofBias : Division.NONE);
            a = this.lora == null ? null : adapter(name + "LoraA", entering ? shared : division);
            b = this.lora == null ? null : adapter(name + "LoraB", entering ? division : shared);
            // A child, by which the recomputation of blocks sees that there is dropout.
            dropout =
                    this.lora == null || lora.dropout() == 0
                            ? Optional.empty()
                            : Optional.of(
                                    addChildBlock(
                                            name + "LoraDropout",
                                            Dropout.builder()
                                                    .optRate((float) lora.dropout())
                                                    .build()));
        }

        private Parameter adapter(String name, Division division) {
            Parameter parameter = add(name, Parameter.Type.OTHER, division);
            parameter.setInitializer(name.endsWith("A") ? Projection::random : Initializer.ZEROS);
            return parameter;
        }

        /** Creates A with the random values of PyTorch's linear layers. */
        private static NDArray random(NDManager manager, Shape shape, DataType type) {
            float bound = (float) (1 / Math.sqrt(shape.get(1)));
            return manager.randomUniform(-bound, bound, shape, type);
        }

        void setFullShape(long outputs, long inputs) {
            ShardedBlock.this.setFullShape(weight, outputs, inputs);
            if (bias != null) {
                ShardedBlock.this.setFullShape(bias, outputs);
            }
            if (lora != null) {
                ShardedBlock.this.setFullShape(a, lora.rank(), inputs);
                ShardedBlock.this.setFullShape(b, outputs, lora.rank());
            }
        }

        private boolean isPlain() {
            return lora == null && bias == null;
        }

        private NDArray withBias(ParameterStore store, NDArray y, boolean training) {
            return bias == null ? y : y.add(value(store, bias, y, training));
        }

        private boolean drops(boolean training) {
            return training && dropout.isPresent();
        }

        /** Returns the adapter's input. */
        private NDArray dropped(ParameterStore store, NDArray x, boolean training) {
            return drops(training)
                    ? dropout.get().forward(store, new NDList(x), true).singletonOrThrow()
                    : x;
        }

        private NDArray scaled(NDArray x) {
            NDArray scale = x.getManager().create(lora.scale());
            return x.mul(Torch.cast(scale, Torch.scalarType(x)));
        }
    }

    /**
     * Enters a parallel region with projections of the same input. Returns the outputs of each
     * projection. If weights are converted and no projection has a bias or an adapter, returns one
     * array with all outputs side by side.
     */
    final List<NDArray> enterRegion(
            ParameterStore store, NDArray x, boolean training, List<Projection> projections) {
        List<Parameter> parameters = new ArrayList<>();
        projections.forEach(each -> parameters.add(each.weight));
        if (projections.stream().allMatch(Projection::isPlain)) {
            return intoRegion(x, values(store, parameters, x, training));
        }
        projections.stream()
                .filter(each -> each.lora != null && !each.drops(training))
                .forEach(each -> parameters.add(each.a));
        List<NDArray> in =
                intoRegion(
                        x,
                        parameters.stream().map(each -> value(store, each, x, training)).toList());
        List<NDArray> outputs = new ArrayList<>();
        int adapter = projections.size();
        for (Projection each : projections) {
            NDArray y = in.get(outputs.size());
            if (each.lora != null) {
                NDArray low =
                        each.drops(training)
                                ? intoRegion(
                                                each.dropped(store, x, true),
                                                List.of(value(store, each.a, x, true)))
                                        .get(0)
                                : in.get(adapter++);
                NDArray narrow = each.scaled(low);
                y = y.add(product(narrow, value(store, each.b, x, training)));
            }
            outputs.add(each.withBias(store, y, training));
        }
        return outputs;
    }

    final NDArray leaveRegion(
            ParameterStore store, NDArray x, boolean training, Projection projection) {
        NDArray y = outOfRegion(x, value(store, projection.weight, x, training));
        if (projection.lora != null) {
            NDArray input = projection.dropped(store, x, training);
            NDArray narrow =
                    projection.scaled(product(input, value(store, projection.a, x, training)));
            y = y.add(outOfRegion(narrow, value(store, projection.b, x, training)));
        }
        return projection.withBias(store, y, training);
    }

    /**
     * Returns a parameter's value in the element type of the input. If several ranks hold the
     * value, its gradient is summed over these ranks.
     */
    final NDArray value(ParameterStore store, Parameter parameter, NDArray x, boolean training) {
        NDArray value = entered(store, parameter, x, training);
        ScalarType type = Torch.scalarType(x);
        return Torch.scalarType(value) == type ? value : with(x, converted(List.of(value), type));
    }

    /**
     * Returns the values of weights that multiply the same input, like {@link #value}. If they have
     * to be converted, joins them into one matrix at no additional cost.
     */
    final List<NDArray> values(
            ParameterStore store, List<Parameter> parameters, NDArray x, boolean training) {
        List<NDArray> values = new ArrayList<>();
        for (Parameter parameter : parameters) {
            values.add(entered(store, parameter, x, training));
        }
        ScalarType type = Torch.scalarType(x);
        return values.stream().allMatch(value -> Torch.scalarType(value) == type)
                ? values
                : List.of(with(x, converted(values, type)));
    }

    private NDArray entered(
            ParameterStore store, Parameter parameter, NDArray x, boolean training) {
        Layout layout = layouts.get(parameter.getName());
        NDArray value = store.getValue(parameter, x.getDevice(), training);
        if (training && !layout.isDivided() && sequenceParallel) {
            value = with(x, DifferentiableCollectives.enterParallel(value, group));
        }
        if (training && layout.isDivided() && layout.parts < group.worldSize()) {
            value = with(x, enterSharing(value, layout));
        }
        return value;
    }

    /** Converts parameters into one array, and records the conversion in the scope. */
    private NDArray converted(List<NDArray> values, ScalarType type) {
        GradientScope scope = GradientScope.current().orElse(null);
        if (scope == null || values.stream().noneMatch(NoGradient::isRecorded)) {
            return inOne(values, type);
        }
        NDArray result = NoGradient.get(() -> inOne(values, type));
        scope.recordConversion(values, result);
        return result;
    }

    private NDArray inOne(List<NDArray> values, ScalarType type) {
        return values.size() == 1
                ? Torch.cast(values.get(0), type)
                : BlockOperators.of(group).joined(values, type);
    }

    /**
     * Attaches an array made from a parameter to the manager of an input. Otherwise it would live
     * as long as the parameter.
     */
    static NDArray with(NDArray x, NDArray array) {
        array.attach(x.getManager());
        return array;
    }

    /** Returns a part that several ranks share. Its gradient is summed over these ranks. */
    private NDArray enterSharing(NDArray value, Layout layout) {
        String operator = getClass().getSimpleName() + ", " + layout.parameter.getName();
        Optional<GradientScope> scope = GradientScope.recording(operator, "the part", value);
        NDArray same = value.stopGradient();
        scope.ifPresent(
                recording ->
                        recording.record(
                                operator,
                                List.of(value),
                                List.of(),
                                List.of(same),
                                (inputs, kept, gradients) ->
                                        List.of(sharedGradient(gradients.get(0), layout))));
        return same;
    }

    /**
     * Sums the gradients of all parts in one all-reduce of the group. Returns the sum for this
     * rank's part.
     */
    private NDArray sharedGradient(NDArray gradient, Layout layout) {
        NDList all = new NDList();
        NDArray zeros = Torch.zerosLike(gradient);
        for (int i = 0; i < layout.parts; i++) {
            all.add(i == layout.part ? gradient : zeros);
        }
        NDArray sums = DifferentiableCollectives.allReduce(NDArrays.stack(all), group);
        return sums.get(layout.part);
    }

    private void checkLast(NDArray x, NDArray weight) {
        Shape shape = x.getShape();
        long inner = weight.getShape().get(0);
        if (shape.dimension() < 2 || shape.getLastDimension() != inner) {
            throw new IllegalArgumentException(
                    String.format(
                            "%s: the input must be (tokens, …, %d) on rank %d of %s, not %s",
                            getClass().getSimpleName(), inner, group.rank(), group.name(), shape));
        }
    }

    /** Enters a parallel region: multiplies all tokens with this rank's columns. */
    final List<NDArray> intoRegion(NDArray x, List<NDArray> weights) {
        weights.forEach(weight -> checkLast(x, weight));
        if (sequenceParallel) {
            return FusedOps.allGatherMatmul(x, weights, 0, group, false).outputs();
        }
        NDArray entered = DifferentiableCollectives.enterParallel(x, group);
        return weights.stream().map(weight -> product(entered, weight)).toList();
    }

    /** Leaves a parallel region: multiplies with this rank's rows, and sums over the ranks. */
    private NDArray outOfRegion(NDArray x, NDArray weight) {
        checkLast(x, weight);
        return sequenceParallel
                ? FusedOps.matmulReduceScatter(x, weight, ReduceOp.SUM, 0, group)
                : FusedOps.matmulAllReduce(x, weight, group);
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

    /**
     * Returns the output shape: with another last size, and the first size gathered or scattered.
     */
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
