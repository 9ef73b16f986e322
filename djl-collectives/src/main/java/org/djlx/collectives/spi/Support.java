// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.spi;

import java.util.Collections;
import java.util.EnumMap;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import org.djlx.collectives.ReduceOp;
import org.djlx.nativeops.host.Required;
import org.djlx.nativeops.torch.ScalarType;

/**
 * The combinations of operation, element type and reduction that a backend supports. Argument
 * checks and the table in the documentation are generated from it. Immutable.
 */
public final class Support {

    // Element types of operations that move tensors; empty for operations without a tensor.
    private final Map<OpType, Set<ScalarType>> moves;
    // Element types of operations that reduce tensors, by reduction.
    private final Map<OpType, Map<ReduceOp.Kind, Set<ScalarType>>> reductions;

    private Support(Builder builder) {
        moves = Map.copyOf(builder.moves);
        reductions = Map.copyOf(builder.reductions);
    }

    /** {@return a builder without any supported operation} */
    public static Builder builder() {
        return new Builder();
    }

    /** {@return whether an operation is supported with at least one element type} */
    public boolean supports(OpType operation) {
        Required.argument("supports: operation", operation);
        return moves.containsKey(operation) || reductions.containsKey(operation);
    }

    /**
     * {@return whether an operation is supported with an element type and a reduction; null if it
     * does not reduce}
     */
    public boolean supports(OpType operation, ScalarType type, ReduceOp op) {
        Required.argument("supports: type", type);
        return types(operation, op == null ? null : op.kind()).contains(type);
    }

    /**
     * {@return the element types with which an operation, and its kind of reduction or null, is
     * supported; empty if the operation is not supported or has no tensor}
     */
    public Set<ScalarType> types(OpType operation, ReduceOp.Kind op) {
        Required.argument("types: operation", operation);
        return op == null
                ? moves.getOrDefault(operation, Set.of())
                : reductions.getOrDefault(operation, Map.of()).getOrDefault(op, Set.of());
    }

    /** {@return whether an operation is supported and takes a {@link ReduceOp}} */
    public boolean reduces(OpType operation) {
        return reductions.containsKey(Required.argument("reduces: operation", operation));
    }

    /** Builds {@link Support}. */
    public static final class Builder {

        private final Map<OpType, Set<ScalarType>> moves = new HashMap<>();
        private final Map<OpType, Map<ReduceOp.Kind, Set<ScalarType>>> reductions = new HashMap<>();

        private Builder() {}

        /** Adds operations without a tensor. */
        public Builder addPlain(OpType... operations) {
            return addMoves(Set.of(), operations);
        }

        /** Adds operations that move tensors. */
        public Builder addMoves(Set<ScalarType> types, OpType... operations) {
            Required.argument("addMoves: types", types);
            for (OpType operation : Required.argument("addMoves: operations", operations)) {
                moves.put(operation, Set.copyOf(types));
            }
            return this;
        }

        /**
         * Adds operations that reduce tensors. Each reduction is added with the types for which it
         * is {@linkplain ReduceOp#isDefinedFor defined}.
         */
        public Builder addReductions(
                Set<ScalarType> types, Set<ReduceOp.Kind> ops, OpType... operations) {
            Required.argument("addReductions: types", types);
            Required.argument("addReductions: ops", ops);
            Required.argument("addReductions: operations", operations);
            Map<ReduceOp.Kind, Set<ScalarType>> table = new EnumMap<>(ReduceOp.Kind.class);
            for (ReduceOp.Kind op : ops) {
                Set<ScalarType> defined = EnumSet.copyOf(types);
                defined.removeIf(type -> !op.isDefinedFor(type));
                table.put(op, Collections.unmodifiableSet(defined));
            }
            for (OpType operation : operations) {
                reductions.put(operation, Collections.unmodifiableMap(table));
            }
            return this;
        }

        /** {@return the set of supported combinations} */
        public Support build() {
            return new Support(this);
        }
    }
}
