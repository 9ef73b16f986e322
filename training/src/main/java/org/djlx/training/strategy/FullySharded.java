// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.strategy;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.pytorch.jni.JniUtils;
import ai.djl.training.optimizer.Optimizer;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.function.Consumer;
import java.util.function.ToDoubleFunction;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.training.internal.LocalParameter;
import org.djlx.training.internal.OptimizerState;
import org.djlx.training.internal.Ranks;
import org.djlx.training.internal.Replica;

/**
 * Ranks divide parameters, gradients and the optimizer's state ({@link RankShards}); each has whole
 * statistics only. The block's own arrays are closed until the trainer is.
 */
final class FullySharded implements ParameterStrategy {

    private final Ranks ranks;
    private final Block block;
    private final FullyShard root;
    private final OptimizerState state;
    private final List<RankShards> shards; // of each rank
    private boolean isSummoned; // whether the block has whole arrays

    FullySharded(Ranks ranks, Block block, Optimizer optimizer) {
        this.ranks = ranks;
        this.block = block;
        state = new OptimizerState(optimizer);
        requireDivisible(block, state);
        root = FullyShard.ofModel(block);
        List<NDArray> divided =
                block.getParameters().values().stream()
                        .filter(parameter -> !LocalParameter.isBuffer(parameter))
                        .map(Parameter::getArray)
                        .toList();
        ranks.receive(divided);
        RankShards[] ofRanks = new RankShards[ranks.replicas().size()];
        ranks.each(
                replica -> {
                    replica.load(block, LocalParameter::isBuffer, parameter -> false);
                    ofRanks[replica.index()] = new RankShards(replica, root, ranks.gradientOp());
                });
        shards = List.of(ofRanks);
        shards.get(0).closeOriginals();
        ranks.receive(ranks.first().arrays());
        releaseWhole();
    }

    /**
     * Lets libtorch free the memory of the whole parameters. It would keep it for later arrays: a
     * shard of half of a parameter would take the place of the whole one, as two do not quite fit.
     * Not with a group of the program: ranks with trainers of their own may be in this JVM, and
     * freeing would wait for kernels that wait for this rank.
     */
    private void releaseWhole() {
        if (ranks.openedGroups() && ranks.first().device().isGpu()) {
            ranks.each(replica -> CurrentStreams.await(replica.device()));
            JniUtils.emptyCudaCache();
        }
    }

    /** Rejects the state that an optimizer has of an earlier trainer. */
    private static void requireDivisible(Block block, OptimizerState state) {
        for (Parameter parameter : block.getParameters().values()) {
            if (state.count(parameter.getId()) != null) {
                throw new IllegalStateException(
                        "initialize: the optimizer has state of an earlier trainer, which"
                                + " FULL_SHARD cannot divide; create a new optimizer");
            }
        }
    }

    private RankShards of(Replica replica) {
        return shards.get(replica.index());
    }

    @Override
    public void syncParameters(boolean stepped) {
        // The block's arrays are closed, and no rank has whole parameters to write to.
    }

    @Override
    public NDList forward(Replica replica, NDList data, NDList labels) {
        return of(replica).forward(root, data, labels, true);
    }

    @Override
    public NDList evaluate(Replica replica, NDList data) {
        return of(replica).forward(root, data, null, false);
    }

    @Override
    public NDList computeWhole(NDList data, NDList labels, boolean training) {
        ranks.each(replica -> of(replica).acquireAll());
        try {
            return ranks.first().whole(block, data, labels, training);
        } finally {
            ranks.each(replica -> of(replica).releaseAll());
        }
    }

    @Override
    public void discardPasses() {
        shards.forEach(RankShards::reset);
    }

    @Override
    public void beginBackward() {}

    @Override
    public boolean endBackward(Replica replica) {
        return true; // The pass has reduced each stage's gradients.
    }

    @Override
    public void reduce() {}

    @Override
    public double onReduced(ToDoubleFunction<Replica> body) {
        return ranks.valueOf(shards.size(), body);
    }

    @Override
    public Collection<NDArray> gradients(Replica replica) {
        return of(replica).reducedGradients();
    }

    @Override
    public double norm(Replica replica) {
        return NoGradient.get(of(replica)::norm);
    }

    @Override
    public boolean isZero(Replica replica) {
        return norm(replica) == 0;
    }

    @Override
    public void step(Consumer<Replica> update) {
        ranks.each(update);
    }

    @Override
    public void update(Replica replica, Update visitor) {
        of(replica).step(visitor);
    }

    @Override
    public void zeroGradients() {
        // Ranks may finish a reduction, and then call the next one together.
        ranks.each(replica -> of(replica).zeroGradients());
    }

    @Override
    public Runnable summon(NDManager owner) {
        if (isSummoned) {
            return () -> {};
        }
        ranks.each(
                replica ->
                        of(replica)
                                .restore(Optional.of(owner).filter(any -> replica.index() == 0)));
        isSummoned = true;
        return () -> {
            isSummoned = false;
            shards.get(0).closeOriginals();
        };
    }

    @Override
    public void restore(NDManager owner) {
        ranks.first().writeBack();
        summon(owner);
        shards.forEach(own -> own.removeState(state));
        ranks.each(replica -> of(replica).destroyMeshes());
        root.undoAutomatic();
    }

    @Override
    public ShardingStrategy sharding() {
        return ShardingStrategy.FULL_SHARD;
    }

    @Override
    public List<ParameterShard> shards(Replica replica) {
        List<ParameterShard> all = new ArrayList<>();
        boolean isOwner = replica.group().rank() == 0; // of buffers
        replica.parameters().forEach(own -> all.add(WholeParameters.whole(own, isOwner)));
        all.addAll(of(replica).shards());
        return all;
    }

    @Override
    public Map<String, TensorSpec> specs() {
        Map<String, TensorSpec> specs = WholeParameters.specs(ranks.first());
        shards.get(0).addSpecs(specs);
        return specs;
    }
}
