// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.strategy;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.pytorch.engine.PtNDArray;
import ai.djl.pytorch.jni.JniUtils;
import ai.djl.util.PairList;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.BiPredicate;
import java.util.function.ToIntFunction;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.engine.DividedBlock;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.Torch;
import org.djlx.training.internal.ForwardPass;
import org.djlx.training.internal.LocalParameter;
import org.djlx.training.internal.Ranks;
import org.djlx.training.internal.Replica;

/** Each rank has whole parameters and whole gradients, which it keeps in buckets. */
abstract sealed class WholeParameters implements ParameterStrategy permits OneMemory, Replicated {

    final Ranks ranks;
    final Block block;
    private final List<GradientBuckets> buckets = new ArrayList<>(); // of each rank

    /**
     * Creates arrays and buckets of each rank.
     *
     * @param isView whether a rank's array of a parameter is a view of the block's
     */
    WholeParameters(
            Ranks ranks,
            Block block,
            Options options,
            BiPredicate<Replica, Parameter> isView,
            boolean reduces) {
        this.ranks = ranks;
        this.block = block;
        for (Replica replica : ranks.replicas()) {
            replica.load(block, parameter -> true, parameter -> isView.test(replica, parameter));
            ProcessGroup group = reduces ? replica.group() : null;
            NDManager manager = replica.manager();
            buckets.add(new GradientBuckets(group, ranks.gradientOp(), options, manager));
        }
        ranks.receive(ranks.first().arrays());
    }

    final GradientBuckets buckets(Replica replica) {
        return buckets.get(replica.index());
    }

    /** Makes the gradients of a rank those of all ranks, unless they are. */
    final PairList<NDArray, NDArray> reduced(Replica replica) {
        return NoGradient.get(() -> buckets(replica).reduce(replica.trained()));
    }

    @Override
    public NDList evaluate(Replica replica, NDList data) {
        return ForwardPass.evaluate(block, replica.store(), data);
    }

    @Override
    public NDList computeWhole(NDList data, NDList labels, boolean training) {
        return ranks.first().whole(block, data, labels, training);
    }

    @Override
    public void beginBackward() {
        ranks.replicas().forEach(replica -> buckets(replica).begin(replica.trained()));
    }

    @Override
    public Collection<NDArray> gradients(Replica replica) {
        return reduced(replica).values();
    }

    @Override
    public double norm(Replica replica) {
        ToIntFunction<NDArray> copies = GradientNorm.copies(block, replica.store()::array);
        PairList<NDArray, NDArray> reduced = reduced(replica);
        return NoGradient.get(
                () ->
                        GradientNorm.of(
                                replica,
                                reduced.values(),
                                i -> copies.applyAsInt(reduced.keyAt(i)),
                                DividedBlock.groupOf(block)));
    }

    @Override
    public boolean isZero(Replica replica) {
        return gradients(replica).stream().allMatch(GradientBuckets::isZero);
    }

    @Override
    public void update(Replica replica, Update visitor) {
        reduced(replica);
        for (LocalParameter own : replica.parameters()) {
            update(replica, own, updates(replica, own) ? visitor : (id, array, gradient) -> {});
        }
        buckets(replica).reset();
    }

    /**
     * Visits a rank's parameter with its reduced gradient, if it has one, and drops the gradient.
     */
    final void update(Replica replica, LocalParameter own, Update visitor) {
        buckets(replica)
                .reduced(own.array())
                .ifPresent(
                        gradient -> {
                            visitor.apply(own.id(), own.array(), gradient);
                            gradient.close(); // Otherwise it counts as held by the program.
                        });
        clear(own.array());
    }

    /**
     * Divides the parameters among {@code count} ranks, in the block's order: each goes to the rank
     * with the fewest elements. Returns the rank by the parameter's name.
     */
    static Map<String, Integer> owners(Replica replica, int count) {
        Map<String, Integer> owners = new HashMap<>();
        long[] sizes = new long[count];
        for (LocalParameter own : replica.parameters()) {
            int owner = 0;
            for (int rank = 1; rank < count; rank++) {
                owner = sizes[rank] < sizes[owner] ? rank : owner;
            }
            sizes[owner] += own.array().size();
            owners.put(own.name(), owner);
        }
        return owners;
    }

    /** Returns whether a rank updates a parameter, and has the optimizer's state of it. */
    boolean updates(Replica replica, LocalParameter own) {
        return true;
    }

    @Override
    public void zeroGradients() {
        for (Replica replica : ranks.replicas()) {
            buckets(replica).reset();
            replica.arrays().forEach(WholeParameters::clear);
        }
    }

    private static void clear(NDArray array) {
        try (NDArray gradient = JniUtils.getGradient((PtNDArray) array)) {
            if (gradient == null) {
                return;
            }
        }
        GradientBuckets.clear(array);
    }

    @Override
    public Runnable summon(NDManager owner) {
        return () -> {};
    }

    @Override
    public void restore(NDManager owner) {
        ranks.first().writeBack();
    }

    @Override
    public ShardingStrategy sharding() {
        return ShardingStrategy.NO_SHARD;
    }

    @Override
    public List<ParameterShard> shards(Replica replica) {
        return replica.parameters().stream().map(own -> whole(own, updates(replica, own))).toList();
    }

    static ParameterShard whole(LocalParameter own, boolean isOwner) {
        NDArray array = own.array();
        return new ParameterShard(
                own.name(), own.id(), array.getShape(), 0, array, isOwner, isOwner);
    }

    @Override
    public Map<String, TensorSpec> specs() {
        return specs(ranks.first());
    }

    static Map<String, TensorSpec> specs(Replica replica) {
        Map<String, TensorSpec> specs = new LinkedHashMap<>();
        for (LocalParameter own : replica.parameters()) {
            NDArray array = own.array();
            specs.put(
                    own.name(),
                    TensorSpec.of(own.name(), Torch.scalarType(array), array.getShape()));
        }
        return specs;
    }
}
