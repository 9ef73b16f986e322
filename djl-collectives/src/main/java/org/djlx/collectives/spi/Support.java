/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.spi;

import java.util.Collections;
import java.util.EnumMap;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.internal.host.Required;
import org.djlx.nativeops.torch.ScalarType;

/**
 * What a backend supports: operation × element type × reduce op, as data. The checks of arguments
 * and the table in the documentation both come from it. Immutable.
 */
public final class Support {

    // Movement: the element types. An operation without a tensor has none.
    private final Map<OpType, Set<ScalarType>> moves;
    // Reduction: for every kind of reduce op, the element types.
    private final Map<OpType, Map<ReduceOp.Kind, Set<ScalarType>>> reductions;

    private Support(Builder builder) {
        moves = Map.copyOf(builder.moves);
        reductions = Map.copyOf(builder.reductions);
    }

    /**
     * Returns a builder of a backend that supports nothing.
     *
     * @return the builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /**
     * Tells whether an operation is supported, with some element types at least.
     *
     * @param operation the operation
     * @return whether it is
     */
    public boolean supports(OpType operation) {
        Required.argument("supports: operation", operation);
        return moves.containsKey(operation) || reductions.containsKey(operation);
    }

    /**
     * Tells whether an operation is supported with an element type.
     *
     * @param operation the operation
     * @param type the element type
     * @param op the reduce op; null if the operation does not reduce
     * @return whether it is
     */
    public boolean supports(OpType operation, ScalarType type, ReduceOp op) {
        Required.argument("supports: type", type);
        return types(operation, op == null ? null : op.kind()).contains(type);
    }

    /**
     * Returns the element types that an operation is supported with.
     *
     * @param operation the operation
     * @param op the kind of reduce op; null if the operation does not reduce
     * @return the types; empty if the operation is not supported, or has no tensor
     */
    public Set<ScalarType> types(OpType operation, ReduceOp.Kind op) {
        Required.argument("types: operation", operation);
        return op == null
                ? moves.getOrDefault(operation, Set.of())
                : reductions.getOrDefault(operation, Map.of()).getOrDefault(op, Set.of());
    }

    /**
     * Tells whether an operation is a reduction of this backend.
     *
     * @param operation the operation
     * @return true if it takes a reduce op
     */
    public boolean reduces(OpType operation) {
        return reductions.containsKey(Required.argument("reduces: operation", operation));
    }

    /** Builds {@link Support}. */
    public static final class Builder {

        private final Map<OpType, Set<ScalarType>> moves = new HashMap<>();
        private final Map<OpType, Map<ReduceOp.Kind, Set<ScalarType>>> reductions = new HashMap<>();

        private Builder() {}

        /**
         * Adds operations that have no tensor.
         *
         * @param operations the operations
         * @return this builder
         */
        public Builder addPlain(OpType... operations) {
            return addMoves(Set.of(), operations);
        }

        /**
         * Adds operations that move tensors.
         *
         * @param types the element types
         * @param operations the operations
         * @return this builder
         */
        public Builder addMoves(Set<ScalarType> types, OpType... operations) {
            Required.argument("the types of operations that move tensors", types);
            for (OpType operation : Required.argument("the operations", operations)) {
                moves.put(operation, Set.copyOf(types));
            }
            return this;
        }

        /**
         * Adds operations that reduce tensors: each reduce op with those of the types for which it
         * {@linkplain ReduceOp#isDefinedFor is defined}.
         *
         * @param types the element types
         * @param ops the kinds of reduce op
         * @param operations the operations
         * @return this builder
         */
        public Builder addReductions(
                Set<ScalarType> types, Set<ReduceOp.Kind> ops, OpType... operations) {
            Required.argument("addReductions: types", types);
            Required.argument("addReductions: ops", ops);
            Required.argument("addReductions: operations", operations);
            Map<ReduceOp.Kind, Set<ScalarType>> table = new EnumMap<>(ReduceOp.Kind.class);
            for (ReduceOp.Kind op : ops) {
                Set<ScalarType> defined = EnumSet.copyOf(types);
                defined.removeIf(type -> !ReduceOp.isDefined(op, type));
                table.put(op, Collections.unmodifiableSet(defined));
            }
            for (OpType operation : operations) {
                reductions.put(operation, Collections.unmodifiableMap(table));
            }
            return this;
        }

        /**
         * Builds the declaration.
         *
         * @return the declaration
         */
        public Support build() {
            return new Support(this);
        }
    }
}
