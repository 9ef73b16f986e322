// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import ai.djl.nn.Block;
import ai.djl.training.optimizer.Optimizer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;
import org.djlx.collectives.Work;

/**
 * As {@link Replicated}, but each rank updates some of the parameters and broadcasts them, so it
 * has the optimizer's state of these only (ZeRO stage 1).
 */
final class ShardedOptimizer extends Replicated {

    private final Map<String, Integer> owners = new HashMap<>(); // the updating rank, by name

    ShardedOptimizer(
            Ranks ranks,
            Block block,
            Optimizer optimizer,
            DataParallelConfig settings,
            Supplier<ReductionTime> time) {
        super(ranks, block, requireKnown(optimizer), settings, time);
        long[] sizes = new long[ranks.worldSize()];
        for (LocalParameter own : ranks.first().parameters()) {
            int owner = 0;
            for (int rank = 1; rank < sizes.length; rank++) {
                owner = sizes[rank] < sizes[owner] ? rank : owner;
            }
            sizes[owner] += own.array().size();
            owners.put(own.name(), owner);
        }
    }

    private static Optimizer requireKnown(Optimizer optimizer) {
        new OptimizerState(optimizer); // Throws if its state cannot be divided.
        return optimizer;
    }

    @Override
    boolean updates(Replica replica, LocalParameter own) {
        return owners.get(own.name()) == replica.group().rank();
    }

    @Override
    public void share(Replica replica) {
        List<Work> works = new ArrayList<>();
        for (LocalParameter own : replica.parameters()) {
            if (own.isTrained()) {
                works.add(replica.group().broadcast(own.array(), owners.get(own.name())));
            }
        }
        works.forEach(work -> Replica.complete(replica.device(), work));
    }

    @Override
    public void forgetState(Optimizer optimizer) {
        OptimizerState state = new OptimizerState(optimizer);
        for (Replica replica : ranks.replicas()) {
            replica.parameters()
                    .forEach(own -> state.set(own.id(), replica.device(), null, Map.of()));
        }
    }

    @Override
    public boolean isSharded() {
        return true;
    }
}
