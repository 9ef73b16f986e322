// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.internal;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.ParameterStore;
import java.util.IdentityHashMap;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import org.djlx.collectives.ProcessGroup;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;

/** Gives blocks a rank's arrays. DJL's store makes no copy on the device of the array. */
public class RankStore extends ParameterStore {

    private final Map<String, NDArray> arrays = new ConcurrentHashMap<>();
    private final ProcessGroup group;
    private final ScalarType computeType;
    private final NDManager manager;
    private final Map<Block, Recomputation> recomputations = new IdentityHashMap<>();
    private Optional<Units> units = Optional.empty(); // empty if each array is whole all the time
    private volatile boolean idle;

    /** Computes blocks whose parameters the ranks have divided. */
    public interface Units {
        NDList forward(Block unit, RankStore store, NDList data, NDList labels, boolean training);
    }

    /** A store with copies of some arrays; the others are those of another store. */
    private static final class Copies extends RankStore {

        private final RankStore others;

        Copies(RankStore others, ProcessGroup group, boolean idle) {
            super(others.manager, group, others.computeType);
            this.others = others;
            setIdle(idle);
            others.units.ifPresent(this::setUnits);
        }

        @Override
        public NDArray array(Parameter parameter) {
            NDArray own = super.array(parameter);
            return own == null ? others.array(parameter) : own;
        }
    }

    RankStore(NDManager manager, ProcessGroup group, ScalarType computeType) {
        super(manager, false);
        this.manager = manager;
        this.group = group;
        this.computeType = computeType;
    }

    /** A layer that casts its parameters to {@link #computeType} itself. */
    public interface Casting {}

    public final void setUnits(Units units) {
        this.units = Optional.of(units);
    }

    /** {@return what computes divided blocks; empty if the ranks divide no parameters} */
    public Optional<Units> units() {
        return units;
    }

    NDManager manager() {
        return manager;
    }

    /** Returns the recomputation of a block. Called by this rank's thread only. */
    public Recomputation recomputation(Block block) {
        return recomputations.computeIfAbsent(block, own -> new Recomputation(own, this));
    }

    RankStore withOwnStatistics(Block block, NDManager copies, boolean idle) {
        return withOwnStatistics(block, copies, group, idle);
    }

    /**
     * Returns a store in which a block's statistics, and other arrays that passes may write to, are
     * copies.
     */
    RankStore withOwnStatistics(Block block, NDManager copies, ProcessGroup ranks, boolean idle) {
        RankStore own = new Copies(this, ranks, idle);
        for (Parameter parameter : block.getParameters().values()) {
            if (LocalParameter.isBuffer(parameter) && array(parameter) != null) {
                NDArray copy = NoGradient.get(() -> own.array(parameter).duplicate());
                copy.attach(copies);
                own.put(parameter, copy);
            }
        }
        return own;
    }

    /** Returns the type in which layers with mixed precision compute; null for the input's. */
    public ScalarType computeType() {
        return computeType;
    }

    /** Returns the ranks that compute parts of the same batch; null for a whole batch. */
    ProcessGroup group() {
        return group;
    }

    /** Returns whether this rank's rows count for nothing: the batch has too few for it. */
    public boolean isIdle() {
        return idle;
    }

    public final void setIdle(boolean idle) {
        this.idle = idle;
    }

    @Override
    public NDArray getValue(Parameter parameter, Device device, boolean training) {
        NDArray array = parameter == null ? null : array(parameter);
        if (array == null && parameter != null && units.isPresent()) {
            throw new IllegalStateException(
                    ("forward: the parameter '%s' is divided and not gathered: its block was called"
                                    + " directly, not the one that FullyShard.apply has put in its"
                                    + " place; keep blocks in fields, lists or arrays of blocks"
                                    + " only")
                            .formatted(parameter.getName()));
        }
        return array;
    }

    /** Returns a parameter's array; null while the parameter is divided. */
    public NDArray array(Parameter parameter) {
        return arrays.get(parameter.getId());
    }

    public void put(Parameter parameter, NDArray array) {
        arrays.put(parameter.getId(), array);
    }

    void replace(NDArray before, NDArray array) {
        arrays.replaceAll((id, own) -> own == before ? array : own);
    }

    public void remove(Parameter parameter) {
        arrays.remove(parameter.getId());
    }
}
