// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.strategy;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.EnumMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/** Memory in which stages are gathered one after the other. */
final class ParameterSlot {

    private final Map<ScalarType, Long> sizes = new EnumMap<>(ScalarType.class); // elements
    private final Map<ScalarType, NDArray> rows = new EnumMap<>(ScalarType.class);
    // Whose parameters it has or is receiving.
    private Optional<Tenant> holder = Optional.empty();

    /** Makes room for a stage. To be called for all stages before the first {@link Tenant}. */
    void reserve(ShardedStage stage) {
        stage.sizes().forEach((type, size) -> sizes.merge(type, size, Math::max));
    }

    /** Returns memory for the flat parameters of a stage, always the same. */
    private List<NDArray> rows(ShardedStage stage, NDManager manager) {
        Map<ScalarType, Long> used = new EnumMap<>(ScalarType.class);
        List<NDArray> own = new ArrayList<>();
        for (FlatParameter flat : stage.flats()) {
            ScalarType type = stage.heldType(flat, false);
            NDArray all =
                    rows.computeIfAbsent(
                            type, key -> Torch.empty(manager, new Shape(sizes.get(key)), key));
            long size = stage.unshardedShape(flat).size();
            long begin = used.merge(type, size, Long::sum) - size;
            own.add(Torch.narrow(all, 0, begin, size));
        }
        return own;
    }

    /** Forgets what is in the memory, unless it is in use. */
    void evictIfUnused() {
        holder.filter(tenant -> !tenant.stage.isUsed()).ifPresent(Tenant::leave);
    }

    /** A stage that is gathered in this slot. */
    final class Tenant {

        private final ShardedStage stage;
        private final UnshardedParameters parameters;

        Tenant(ShardedStage stage, StageContext context) {
            this.stage = stage;
            parameters =
                    new UnshardedParameters(
                            stage, context, false, owner -> rows(stage, context.manager()));
        }

        /** The parameters, if this is the holder; otherwise the memory has others. */
        UnshardedParameters parameters() {
            return parameters;
        }

        boolean isHolder() {
            return holder.isPresent() && holder.get() == this;
        }

        /** Starts to gather the parameters, unless they are here or others are in use. */
        void enter() {
            if (!isHolder()) {
                evictIfUnused();
                if (holder.isEmpty()) {
                    parameters.gather();
                    holder = Optional.of(this); // Not if the gather could not be issued.
                }
            }
        }

        void leave() {
            if (isHolder()) {
                holder = Optional.empty();
                parameters.await();
            }
        }
    }
}
