// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.strategy;

import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import java.util.ArrayList;
import java.util.EnumMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.djlx.collectives.ProcessGroup;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/** A block that is gathered as a whole. */
final class ShardedStage {

    /**
     * The group of ranks that divide a stage, and the group of ranks with the same part of it.
     *
     * @param replicas empty if all ranks divide it
     */
    record Mesh(ProcessGroup shards, Optional<ProcessGroup> replicas) {

        boolean isFirstReplica() {
            return replicas.map(ranks -> ranks.rank() == 0).orElse(true);
        }
    }

    private final StageContext context;
    private final Block block;
    private final FullyShardPolicy policy;
    private final Mesh mesh;
    private final ShardedStage outer; // null for the whole model
    private final int depth; // number of stages around this one
    private final List<FlatParameter> flats = new ArrayList<>();
    private boolean hasInner; // whether the stage contains others
    // In the order of the last pass; before the first one, of the model.
    private Optional<ShardedStage> next = Optional.empty();
    // Empty if the stage keeps its parameters until the backward pass, in memory of their own.
    private Optional<ParameterSlot.Tenant> tenant = Optional.empty();
    private Optional<UnshardedParameters> inOwnMemory = Optional.empty();
    private int uses; // calls of acquire() without release()
    // Owns the arrays that blocks find.
    private Optional<NDManager> published = Optional.empty();

    ShardedStage(StageContext context, FullyShard wrapper, Mesh mesh, ShardedStage outer) {
        this.context = context;
        this.mesh = mesh;
        this.outer = outer;
        block = wrapper.block();
        policy = wrapper.policy();
        depth = outer == null ? 0 : outer.depth + 1;
        if (outer != null) {
            outer.hasInner = true;
        }
    }

    Block block() {
        return block;
    }

    FullyShardPolicy policy() {
        return policy;
    }

    Mesh mesh() {
        return mesh;
    }

    /** {@return the stage's parameters, one for each element type; filled by {@link StageTree}} */
    List<FlatParameter> flats() {
        return flats;
    }

    boolean isUsed() {
        return uses > 0;
    }

    Optional<ShardedStage> next() {
        return next;
    }

    void setNext(ShardedStage stage) {
        next = Optional.of(stage);
    }

    /** Makes the stage use a slot. */
    void setSlot(ParameterSlot slot) {
        tenant = Optional.of(slot.new Tenant(this, context));
    }

    /** Returns whether the parameters are in a slot, or come there when they are needed. */
    boolean isInSlot() {
        return tenant.isPresent() && inOwnMemory.isEmpty();
    }

    /** Returns outputs, with copies of those that are views of the slot. */
    NDList withoutViews(NDList outputs) {
        return isInSlot() ? tenant.get().parameters().withoutViews(outputs) : outputs;
    }

    /** Returns whether the parameters are divided again after a forward pass. */
    boolean reshardsAfterForward() {
        return !flats.isEmpty() && !hasInner && policy.reshardsAfterForward();
    }

    ScalarType gatheredType(FlatParameter flat, boolean inOwnType) {
        ScalarType own = Torch.scalarType(flat.shard);
        return inOwnType ? own : policy.parameterType(own);
    }

    /** Returns the type of the arrays: the parameters' own, unless all layers cast them. */
    ScalarType heldType(FlatParameter flat, boolean inOwnType) {
        ScalarType gathered = gatheredType(flat, inOwnType);
        boolean layersCast =
                gathered == context.store().computeType()
                        && flat.parts.stream().allMatch(FlatParameter.Part::casts);
        return layersCast ? gathered : Torch.scalarType(flat.shard);
    }

    /** Returns the number of elements of each type that the parameters take. */
    Map<ScalarType, Long> sizes() {
        Map<ScalarType, Long> sizes = new EnumMap<>(ScalarType.class);
        flats.forEach(f -> sizes.merge(heldType(f, false), unshardedShape(f).size(), Long::sum));
        return sizes;
    }

    /** Starts to gather the parameters, unless they are gathered or the slot is in use. */
    void prefetch() {
        if (isInSlot()) {
            tenant.get().enter();
        } else {
            gatherInOwnMemory();
        }
    }

    private void gatherInOwnMemory() {
        if (inOwnMemory.isEmpty() && !flats.isEmpty()) {
            UnshardedParameters own = new UnshardedParameters(this, context, false);
            own.gather();
            inOwnMemory = Optional.of(own);
        }
    }

    /** Waits until the parameters are gathered, and keeps them until {@link #release}. */
    void acquire() {
        prefetch();
        if (!flats.isEmpty() && published.isEmpty()) {
            try {
                UnshardedParameters parameters = inOwnMemory.orElseGet(this::inSlot);
                parameters.await();
                published = Optional.of(parameters.publish());
            } catch (RuntimeException | Error e) {
                discard(); // What has not arrived is not to be used.
                throw e;
            }
        }
        uses++;
    }

    private UnshardedParameters inSlot() {
        ParameterSlot.Tenant own = tenant.orElseThrow();
        if (!own.isHolder()) {
            throw new IllegalStateException(
                    "forward: a block of FullyShard is computed within another one that is not its"
                            + " parent; let FullyShard.apply choose only one of them");
        }
        return own.parameters();
    }

    /** As {@link #acquire}, in memory of its own. */
    void acquireInOwnMemory() {
        gatherInOwnMemory();
        acquire();
    }

    /** Unpublishes the parameters if this is the last use. */
    void release() {
        uses--;
        unpublishIfUnused();
    }

    void unpublishIfUnused() {
        if (uses == 0) {
            unpublish();
        }
    }

    /**
     * Blocks find the parameters no more. Frees memory outside of slots; a slot keeps them until
     * another stage needs it.
     */
    private void unpublish() {
        parts().forEach(part -> part.parameters().forEach(context.store()::remove));
        published.ifPresent(NDManager::close);
        published = Optional.empty();
        Optional<UnshardedParameters> own = inOwnMemory;
        inOwnMemory = Optional.empty();
        own.ifPresent(UnshardedParameters::await);
        own.ifPresent(UnshardedParameters::close);
    }

    /** Frees the parameters, even if they are in use. */
    void discard() {
        uses = 0;
        unpublish();
        tenant.ifPresent(ParameterSlot.Tenant::leave);
        tenant.ifPresent(own -> own.parameters().clearGradients());
    }

    Shape unshardedShape(FlatParameter flat) {
        return new Shape(flat.shard.size() * mesh.shards().worldSize());
    }

    /** Returns the innermost stage that contains both. */
    ShardedStage innermostCommon(ShardedStage other) {
        ShardedStage one = this;
        while (one != other) {
            if (one.depth < other.depth) {
                other = other.outer;
            } else {
                one = one.outer;
            }
        }
        return one;
    }

    List<FlatParameter.Part> parts() {
        return flats.stream().flatMap(flat -> flat.parts.stream()).toList();
    }
}
