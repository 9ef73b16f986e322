// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.strategy;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.DataType;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.pytorch.engine.PtNDArray;
import ai.djl.pytorch.jni.JniUtils;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;
import java.util.function.ToDoubleFunction;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.Torch;
import org.djlx.training.internal.ForwardPass;
import org.djlx.training.internal.LocalParameter;
import org.djlx.training.internal.Ranks;
import org.djlx.training.internal.Replica;

/**
 * A single rank, or CPU ranks of one JVM that share the first rank's parameters and optimizer
 * state.
 *
 * <ul>
 *   <li>The other ranks have views of the parameters, and their own gradients and statistics.
 *   <li>After a backward pass, their gradients are added to the first rank's, in rank order.
 *   <li>Each parameter has an owner, the rank that adds its gradients and updates it. Of a small
 *       model, the first rank, which the program's thread runs, owns all parameters.
 * </ul>
 */
final class OneMemory extends WholeParameters {

    // Up to this size, waiting for other ranks takes longer than all additions and updates.
    private static final long SMALL_BYTES = 2 << 20;

    private final int count; // of the ranks that own parameters
    private final Map<String, Integer> owners; // the owner's index, by the parameter's name

    OneMemory(Ranks ranks, Block block, Options options) {
        super(ranks, block, options, OneMemory::isView, false);
        long bytes = ranks.first().arrays().stream().mapToLong(NDArray::size).sum() * Float.BYTES;
        count = bytes > SMALL_BYTES ? ranks.replicas().size() : 1;
        owners = owners(ranks.first(), count);
    }

    private static boolean isView(Replica replica, Parameter parameter) {
        return replica.index() > 0 && !LocalParameter.isStatistic(parameter);
    }

    /**
     * Returns whether the ranks can share a block's parameters. False in any of these cases:
     *
     * <ul>
     *   <li>one rank in this JVM
     *   <li>ranks or parameters on a GPU
     *   <li>a sharding strategy or a gradient hook
     *   <li>a parameter that is not float32
     *   <li>a block larger than a gradient bucket that the program has set smaller than the
     *       default, to reduce gradients during the backward pass
     *   <li>a parameter without gradient that is not a statistic: each rank's forward pass may
     *       write to it
     * </ul>
     */
    static boolean suits(Ranks ranks, Block block, Options options) {
        if (ranks.others().isEmpty()
                || ranks.first().device().isGpu()
                || options.sharding() != ShardingStrategy.NO_SHARD
                || options.hook() != GradientCompression.NONE) {
            return false;
        }
        boolean divided = options.bucketBytes() < Options.BUCKET_BYTES;
        long bytes = 0;
        for (Parameter parameter : block.getParameters().values()) {
            NDArray array = parameter.getArray();
            bytes += array.size() * Float.BYTES;
            boolean written =
                    !parameter.requiresGradient() && !LocalParameter.isStatistic(parameter);
            if (written
                    || array.getDataType() != DataType.FLOAT32
                    || array.getDevice().isGpu()
                    || divided && bytes > options.bucketBytes()) {
                return false;
            }
        }
        return true;
    }

    @Override
    public void syncParameters(boolean stepped) {
        ranks.others().forEach(this::replaceViews);
        if (!stepped) {
            ranks.replicas().forEach(Replica::takeWritten);
        }
    }

    /** Replaces views of memory that the program has replaced, as {@code NDArray.set} does. */
    private void replaceViews(Replica other) {
        for (int k = 0; k < other.parameters().size(); k++) {
            int i = k;
            LocalParameter own = other.parameters().get(i);
            NDArray memory = ranks.first().parameters().get(i).array();
            if (!own.isStatistic() && Torch.dataPointer(own.array()) != Torch.dataPointer(memory)) {
                NoGradient.run(() -> takeGradient(other, i));
                other.replaceView(i, memory);
            }
        }
    }

    @Override
    public NDList forward(Replica replica, NDList data, NDList labels) {
        return ForwardPass.forward(block, replica.store(), data, labels);
    }

    @Override
    public void discardPasses() {
        // A pass is an operator of the caller's graph, and changes nothing here.
    }

    @Override
    public double onReduced(ToDoubleFunction<Replica> body) {
        return ranks.valueOf(1, body);
    }

    @Override
    public boolean endBackward(Replica replica) {
        return false;
    }

    @Override
    public void reduce() {
        if (!ranks.others().isEmpty()) {
            ranks.run(count, adder -> NoGradient.run(() -> takeGradients(adder)));
        }
    }

    private void takeGradients(Replica adder) {
        List<LocalParameter> first = ranks.first().parameters();
        for (int i = 0; i < first.size(); i++) {
            if (updates(adder, first.get(i))) {
                for (Replica other : ranks.others()) {
                    takeGradient(other, i);
                }
            }
        }
    }

    /** Adds another rank's gradient to the first rank's, and removes it there. */
    private void takeGradient(Replica other, int i) {
        PtNDArray own = (PtNDArray) ranks.first().parameters().get(i).array();
        PtNDArray from = (PtNDArray) other.parameters().get(i).array();
        try (NDArray gradient = JniUtils.getGradient(from);
                NDArray sum = gradient == null ? null : JniUtils.getGradient(own)) {
            if (sum != null) {
                sum.addi(gradient); // Both are float32: TorchInPlace would check that.
            } else if (gradient != null && own.hasGradient()) { // not frozen since the pass
                Torch.setGradient(own, gradient);
            }
            if (gradient != null) {
                Torch.setGradient(from, null);
            }
        }
    }

    @Override
    public void step(Consumer<Replica> update) {
        reduced(ranks.first());
        ranks.run(count, update);
        buckets(ranks.first()).reset();
    }

    @Override
    public void update(Replica replica, Update visitor) {
        for (LocalParameter own : ranks.first().parameters()) {
            if (updates(replica, own)) {
                update(ranks.first(), own, visitor);
            }
        }
    }

    @Override
    boolean updates(Replica replica, LocalParameter own) {
        return owners.get(own.name()) == replica.index();
    }

    @Override
    public List<ParameterShard> shards(Replica replica) {
        return replica.parameters().stream()
                .filter(own -> !isView(replica, own.parameter()))
                .map(own -> whole(own, true))
                .toList();
    }
}
