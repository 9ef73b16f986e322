// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.strategy;

import ai.djl.ndarray.NDManager;
import ai.djl.nn.Block;
import ai.djl.training.optimizer.Optimizer;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;
import java.util.function.Supplier;
import org.djlx.collectives.Work;
import org.djlx.training.internal.LocalParameter;
import org.djlx.training.internal.OptimizerState;
import org.djlx.training.internal.Ranks;
import org.djlx.training.internal.Replica;

/**
 * As {@link Replicated}, but each rank updates some of the parameters and broadcasts them, so it
 * has the optimizer's state of these only (ZeRO stage 1).
 */
final class ShardedOptimizer extends Replicated {

    private final OptimizerState state;
    private final Map<String, Integer> owners; // the updating rank, by name

    ShardedOptimizer(
            Ranks ranks,
            Block block,
            Optimizer optimizer,
            OptimizerState state,
            Options options,
            Supplier<ReductionTime> time) {
        super(ranks, block, optimizer, options, time);
        this.state = state;
        owners = owners(ranks.first(), ranks.worldSize());
    }

    @Override
    boolean updates(Replica replica, LocalParameter own) {
        return owners.get(own.name()) == replica.group().rank();
    }

    @Override
    public void step(Consumer<Replica> update) {
        super.step(update.andThen(this::broadcastUpdated));
    }

    private void broadcastUpdated(Replica replica) {
        List<Work> works = new ArrayList<>();
        for (LocalParameter own : replica.parameters()) {
            if (own.isTrained()) {
                works.add(replica.group().broadcast(own.array(), owners.get(own.name())));
            }
        }
        works.forEach(work -> Replica.complete(replica.device(), work));
    }

    @Override
    public void restore(NDManager owner) {
        super.restore(owner);
        for (Replica replica : ranks.replicas()) {
            replica.parameters()
                    .forEach(own -> state.set(own.id(), replica.device(), null, Map.of()));
        }
    }

    @Override
    public ShardingStrategy sharding() {
        return ShardingStrategy.SHARD_OPTIMIZER;
    }
}
