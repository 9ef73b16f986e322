// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.strategy;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.nn.Block;
import ai.djl.training.optimizer.Optimizer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.function.Consumer;
import java.util.function.Supplier;
import java.util.function.ToDoubleFunction;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.Torch;
import org.djlx.training.internal.LocalParameter;
import org.djlx.training.internal.OptimizerState;
import org.djlx.training.internal.Ranks;
import org.djlx.training.internal.Replica;

/** Each rank has a copy of all parameters; gradients are all-reduced in buckets, as by DDP. */
sealed class Replicated extends WholeParameters permits ShardedOptimizer {

    private final List<StagedForward> passes = new ArrayList<>(); // of each rank
    // By the first rank's array: its reduced gradient's autograd version after the last pass.
    private final Map<NDArray, Long> noted = new IdentityHashMap<>();
    // By the first rank's array: its autograd version after the last step.
    private final Map<NDArray, Long> current = new IdentityHashMap<>();

    Replicated(
            Ranks ranks,
            Block block,
            Optimizer optimizer,
            Options options,
            Supplier<ReductionTime> time) {
        super(ranks, block, options, (replica, parameter) -> false, true);
        ranks.replicas().forEach(each -> passes.add(new StagedForward(each, buckets(each), time)));
        alignState(optimizer);
    }

    /**
     * Copies the first rank's optimizer state to all other ranks. An earlier trainer with the same
     * optimizer may have had fewer ranks, or may have failed in the middle of a step.
     */
    private void alignState(Optimizer optimizer) {
        if (ranks.others().isEmpty()) {
            return;
        }
        OptimizerState state;
        try {
            state = new OptimizerState(optimizer);
        } catch (IllegalStateException e) {
            return; // Not one of DJL's optimizers: where it keeps its state is unknown.
        }
        Replica first = ranks.first();
        for (Replica replica : ranks.others()) {
            for (int i = 0; i < first.parameters().size(); i++) {
                String from = first.parameters().get(i).id();
                Map<String, NDArray> copies = new HashMap<>();
                state.arrays(from, first.device())
                        .forEach((slot, array) -> copies.put(slot, replica.copy(array)));
                copies.values().forEach(NDArray::detach); // The optimizer owns its state.
                String id = replica.parameters().get(i).id();
                state.set(id, replica.device(), state.count(from), copies);
            }
        }
    }

    @Override
    public void syncParameters(boolean stepped) {
        if (!stepped) {
            ranks.replicas().forEach(Replica::takeWritten);
            return;
        }
        for (int i : written()) {
            NDArray written = ranks.first().parameters().get(i).array();
            for (Replica other : ranks.others()) {
                NDArray array = other.parameters().get(i).array();
                NoGradient.run(() -> Torch.copy(array, written));
            }
        }
    }

    /** Returns the parameters written to since the last call, by index, without statistics. */
    private List<Integer> written() {
        List<Integer> written = new ArrayList<>();
        List<LocalParameter> parameters = ranks.first().parameters();
        for (int i = 0; i < parameters.size() && !ranks.others().isEmpty(); i++) {
            LocalParameter own = parameters.get(i);
            Long version = Torch.version(own.array());
            if (!own.isStatistic() && !version.equals(current.put(own.array(), version))) {
                written.add(i);
            }
        }
        return written;
    }

    @Override
    public NDList forward(Replica replica, NDList data, NDList labels) {
        return passes.get(replica.index()).run(block, data, labels);
    }

    @Override
    public void discardPasses() {
        passes.forEach(StagedForward::discardPasses);
    }

    @Override
    public void beginBackward() {
        sendChangedGradients();
        noted.clear();
        super.beginBackward();
    }

    @Override
    public boolean endBackward(Replica replica) {
        reduced(replica);
        if (replica.index() == 0) {
            noteGradients();
        }
        return true;
    }

    @Override
    public void reduce() {
        ranks.each(this::reduced);
        noteGradients();
    }

    @Override
    public double onReduced(ToDoubleFunction<Replica> body) {
        sendChangedGradients();
        double value = ranks.valueOf(ranks.replicas().size(), body);
        noteGradients();
        return value;
    }

    @Override
    public void step(Consumer<Replica> update) {
        sendChangedGradients();
        noted.clear();
        ranks.each(update);
        written(); // by the step
    }

    /** Remembers the first rank's reduced gradients, to recognise later changes. */
    private void noteGradients() {
        if (!ranks.others().isEmpty()) {
            Replica first = ranks.first();
            for (NDArray array : first.trained()) {
                noted.put(array, Torch.version(buckets(first).reduced(array).orElseThrow()));
            }
        }
    }

    /** Copies gradients of the first rank to all other ranks, if the program has changed them. */
    private void sendChangedGradients() {
        List<LocalParameter> parameters = ranks.first().parameters();
        for (int i = 0; i < parameters.size() && !noted.isEmpty(); i++) {
            NDArray array = parameters.get(i).array();
            Optional<NDArray> from =
                    noted.containsKey(array)
                            ? buckets(ranks.first()).reduced(array)
                            : Optional.empty();
            if (from.isPresent() && Torch.version(from.get()) != noted.get(array)) {
                for (Replica other : ranks.others()) {
                    NDArray own = other.parameters().get(i).array();
                    NDArray to = buckets(other).reduced(own).orElseThrow();
                    NoGradient.run(() -> Torch.copy(to, from.get()));
                }
            }
        }
    }

    @Override
    public void zeroGradients() {
        noted.clear();
        super.zeroGradients();
    }
}
