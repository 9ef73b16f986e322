// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.internal;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.norm.BatchNorm;
import ai.djl.nn.norm.GhostBatchNorm;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;
import java.lang.reflect.Field;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.stream.IntStream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * Batch normalisation with the statistics of all ranks' rows, as PyTorch's {@code SyncBatchNorm}.
 *
 * <p>Forward: each rank computes mean and variance of its rows. One all-gather, and Chan's formula
 * for the variance of several samples (Chan, Golub, LeVeque 1979), give mean and variance of all
 * rows. Backward: one all-reduce. A rank without rows computes a row that has weight 0. Without a
 * group, in evaluation and with other parameter stores, the block computes what DJL's {@link
 * BatchNorm} computes.
 */
// GhostBatchNorm is the only subclass of BatchNorm with a constructor that is not private to DJL.
public final class SyncBatchNorm extends GhostBatchNorm implements BlockReplacement.Substitute {

    private static final String NAME = "batch normalisation"; // for errors

    private final BatchNorm original;
    private final long virtualRows; // of a GhostBatchNorm's virtual batch
    private final int axis;
    private final float momentum;
    private final float epsilon;

    private SyncBatchNorm(BatchNorm original) throws ReflectiveOperationException {
        super(GhostBatchNorm.builder());
        BlockReplacement.copyFields(original, this);
        this.original = original;
        virtualRows =
                original instanceof GhostBatchNorm
                        ? (int) value(GhostBatchNorm.class, "virtualBatchSize", original)
                        : Long.MAX_VALUE;
        axis = (int) value(BatchNorm.class, "axis", original);
        momentum = (float) value(BatchNorm.class, "momentum", original);
        epsilon = (float) value(BatchNorm.class, "epsilon", original);
    }

    private static Object value(Class<?> type, String name, BatchNorm norm)
            throws ReflectiveOperationException {
        Field field = type.getDeclaredField(name);
        field.setAccessible(true);
        return field.get(norm);
    }

    @Override
    public Block original() {
        return original;
    }

    /**
     * Replaces each {@link BatchNorm}, with {@code ghosts} also each {@link GhostBatchNorm}, of a
     * block and its descendants, in fields and child lists.
     */
    public static Block convert(Block block, boolean ghosts) {
        return BlockReplacement.apply(
                block,
                layer ->
                        layer.getClass() == BatchNorm.class
                                        || ghosts && layer.getClass() == GhostBatchNorm.class
                                ? new SyncBatchNorm((BatchNorm) layer)
                                : layer,
                "newTrainer: the batch normalisation in %s cannot be synchronised between ranks");
    }

    /**
     * Collects the parameters of a block that such batch normalisation keeps equal on all ranks.
     */
    static void collectParameters(Block block, Set<Parameter> parameters) {
        if (block instanceof SyncBatchNorm) {
            parameters.addAll(block.getDirectParameters().values());
        }
        block.getChildren().values().forEach(child -> collectParameters(child, parameters));
    }

    @Override
    protected NDList forwardInternal(
            ParameterStore store,
            NDList inputs,
            boolean training,
            PairList<String, Object> params) {
        NDArray x = inputs.singletonOrThrow();
        NDArray[] own = new NDArray[4]; // gamma, beta, running mean, running variance
        for (Parameter parameter : getDirectParameters().values()) {
            int index =
                    switch (parameter.getType()) {
                        case GAMMA -> 0;
                        case BETA -> 1;
                        case RUNNING_MEAN -> 2;
                        default -> 3;
                    };
            own[index] = store.getValue(parameter, x.getDevice(), training);
        }
        if (training && store instanceof RankStore ranks && ranks.group() != null) {
            return new NDList(normalized(x, own, ranks));
        }
        return x.getShape().get(0) > virtualRows
                ? super.forwardInternal(store, inputs, training, params)
                : batchNorm(x, own[2], own[3], own[0], own[1], axis, momentum, epsilon, training);
    }

    /** Mean and reciprocal deviation of each channel, and number of elements, over all ranks. */
    private record Moments(NDArray mean, NDArray scale, NDArray count) {}

    /**
     * Normalises with the moments of all ranks' rows. {@code own}: gamma, beta, running mean and
     * variance.
     */
    private NDArray normalized(NDArray input, NDArray[] own, RankStore ranks) {
        GradientScope scope = null;
        NDArray[] inputs = {input, own[0], own[1]};
        String[] roles = {"input", "gamma", "beta"};
        for (int i = 0; i < inputs.length; i++) {
            scope = GradientScope.recording(NAME, roles[i], inputs[i]).orElse(scope);
        }
        boolean idle = ranks.isIdle();
        ProcessGroup group = ranks.group();
        try (NDManager temporary = input.getManager().newSubManager(input.getDevice())) {
            // The manager of an operator's first operand owns the result. Parameters live as long
            // as the model, so the formulas use aliases of them.
            NDArray x = NoGradient.get(() -> widened(Torch.alias(temporary, input)));
            NDArray[] aliases =
                    Arrays.stream(own)
                            .map(array -> Torch.alias(temporary, array))
                            .toArray(NDArray[]::new);
            Moments[] all = new Moments[1];
            NDArray y =
                    NoGradient.get(
                            () -> {
                                all[0] = moments(x, aliases, idle, group);
                                NDArray scaled = unit(x, all[0]).mul(wide(aliases[0], x));
                                return cast(scaled.add(wide(aliases[1], x)), input);
                            });
            y.attach(input.getManager());
            if (scope != null) {
                scope.record(
                        NAME,
                        List.of(inputs),
                        List.of(all[0].mean, all[0].scale, all[0].count),
                        List.of(y),
                        (in, kept, gradients) ->
                                differentiate(in, kept, gradients.get(0), idle, group));
            }
            return y;
        }
    }

    /** Returns values of 16 bits in float32, in which their sums are computed. */
    private static NDArray widened(NDArray x) {
        boolean narrow = Torch.scalarType(x).isReducedFloatingPoint();
        return narrow ? Torch.cast(x, ScalarType.FLOAT32) : x;
    }

    /** Returns values in the element type of another array. */
    private static NDArray cast(NDArray values, NDArray like) {
        ScalarType type = Torch.scalarType(like);
        return Torch.scalarType(values) == type ? values : Torch.cast(values, type);
    }

    private int channel() {
        return axis == -1 ? 1 : axis; // As DJL's engine PyTorch.
    }

    /** Returns all dimensions but the channel's. */
    private int[] others(NDArray x) {
        return IntStream.range(0, x.getShape().dimension()).filter(k -> k != channel()).toArray();
    }

    /** Returns one value per channel, in a shape that broadcasts to x. */
    private NDArray wide(NDArray values, NDArray x) {
        long[] sizes = new long[x.getShape().dimension()];
        Arrays.fill(sizes, 1);
        sizes[channel()] = values.size();
        return values.reshape(new Shape(sizes));
    }

    /** Returns x with mean 0 and deviation 1 in each channel. */
    private NDArray unit(NDArray x, Moments all) {
        return x.sub(wide(all.mean, x)).mul(wide(all.scale, x));
    }

    /** Computes the moments of all ranks' rows, and updates the running statistics. */
    private Moments moments(NDArray x, NDArray[] own, boolean idle, ProcessGroup group) {
        NDManager manager = x.getManager();
        long channels = x.getShape().get(channel());
        long values = x.size() / Math.max(1, channels);
        float divisor = Math.max(1, values); // An empty part has weight 0.
        NDArray mean = x.sum(others(x)).div(divisor);
        NDArray variance = x.sub(wide(mean, x)).square().sum(others(x)).div(divisor);
        NDArray count = mean.get("0:1").zerosLike().add(idle ? 0 : values);
        NDArray part = NDArrays.concat(new NDList(mean, variance, count));
        Shape gathered = new Shape(group.worldSize(), part.size());
        NDArray parts = Torch.empty(manager, gathered, Torch.scalarType(part));
        Replica.complete(group.device(), group.allGatherIntoTensor(parts, part));
        NDArray means = parts.get(":, :" + channels);
        NDArray variances = parts.get(":, " + channels + ":" + 2 * channels);
        NDArray counts = parts.get(":, " + 2 * channels + ":");
        NDArray total = counts.sum();
        if (idle || values < 2 || virtualRows < Long.MAX_VALUE) {
            // A copy from a GPU waits for it.
            check(x, total.toType(DataType.INT64, false).getLong());
        }
        NDArray weights = counts.div(total);
        NDArray whole = means.mul(weights).sum(new int[] {0});
        NDArray spread = variances.add(means.sub(whole).square()).mul(weights).sum(new int[] {0});
        updateRunning(own[2], whole);
        updateRunning(
                own[3], spread.mul(total.div(total.sub(1)))); // the unbiased variance, as PyTorch
        return new Moments(whole, spread.add(epsilon).pow(-0.5), total);
    }

    /** Fails on all ranks alike, if all together have one value a channel, or too many rows. */
    private void check(NDArray x, long total) {
        if (total < 2) {
            throw new FailureOfAllRanks(
                    "Expected more than 1 value per channel when training, but all ranks together"
                            + " have "
                            + total
                            + " in input "
                            + x.getShape()
                            + "; leave out a last batch of one row, or add it to another");
        }
        long valuesOfRow = 1; // in a channel
        for (int dimension : others(x)) {
            valuesOfRow *= dimension == 0 ? 1 : x.getShape().get(dimension);
        }
        long rows = total / valuesOfRow;
        if (rows > virtualRows) {
            throw new FailureOfAllRanks(
                    String.format(
                            "GhostBatchNorm: the %d rows of all ranks are more than a virtual batch"
                                + " of %d; with several ranks in one JVM set optVirtualBatchSize to"
                                + " the rows of a batch or more, or optSyncBatchNorm(false) for"
                                + " virtual batches of each rank's rows",
                            rows, virtualRows));
        }
    }

    /** Moves a running statistic towards the value of this batch. */
    private void updateRunning(NDArray statistic, NDArray value) {
        Torch.copy(statistic, value.mul(1 - momentum).add(statistic.mul(momentum)));
    }

    /** Returns the gradients of input, gamma and beta; the gradient rule of {@link #normalized}. */
    private List<NDArray> differentiate(
            List<NDArray> in,
            List<NDArray> kept,
            NDArray ofOutput,
            boolean idle,
            ProcessGroup group) {
        NDArray x = widened(in.get(0));
        NDArray gradient = widened(ofOutput);
        Moments all = new Moments(kept.get(0), kept.get(1), kept.get(2));
        NDArray unit = unit(x, all);
        NDArray beta = gradient.sum(others(x));
        NDArray gamma = gradient.mul(unit).sum(others(x));
        NDArray sums = NDArrays.concat(new NDList(beta, gamma));
        Replica.complete(group.device(), group.allReduce(sums, ReduceOp.SUM));
        NDArray means = sums.div(all.count);
        long channels = beta.size();
        NDArray ofInput =
                gradient.sub(wide(means.get(":" + channels), x))
                        .sub(unit.mul(wide(means.get(channels + ":"), x)))
                        .mul(wide(all.scale.mul(in.get(1)), x));
        return List.of(
                idle ? Torch.zerosLike(in.get(0)) : cast(ofInput, in.get(0)),
                cast(gamma, in.get(1)),
                cast(beta, in.get(2)));
    }
}
