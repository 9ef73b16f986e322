/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives;

import java.util.List;
import java.util.Objects;
import org.djlx.collectives.internal.host.Required;
import org.djlx.nativeops.torch.ScalarType;

/**
 * How the tensors of all ranks are combined, element by element; the counterpart of {@code
 * torch.distributed.ReduceOp}.
 *
 * <p>What this project reduces itself (all of {@code shm}, and what {@code cuda_p2p} does not leave
 * to NCCL) is reduced in rank order, 16-bit floating-point types in float32 and rounded once, other
 * types in their own precision. The order of NCCL depends on the size and on how the GPUs are
 * linked, and it may round 16-bit types after every rank.
 */
public final class ReduceOp {

    /** The operators, without what parametrises them. */
    public enum Kind {
        /** See {@link ReduceOp#SUM}. */
        SUM,
        /** See {@link ReduceOp#AVG}. */
        AVG,
        /** See {@link ReduceOp#PRODUCT}. */
        PRODUCT,
        /** See {@link ReduceOp#MIN}. */
        MIN,
        /** See {@link ReduceOp#MAX}. */
        MAX,
        /** See {@link ReduceOp#BAND}. */
        BAND,
        /** See {@link ReduceOp#BOR}. */
        BOR,
        /** See {@link ReduceOp#BXOR}. */
        BXOR,
        /** See {@link ReduceOp#premulSum}. */
        PREMUL_SUM
    }

    /** The sum; integers wrap around, booleans are or-ed. */
    public static final ReduceOp SUM = new ReduceOp(Kind.SUM, 1);

    /** The sum divided by the number of ranks; floating-point types only. */
    public static final ReduceOp AVG = new ReduceOp(Kind.AVG, 1);

    /** The product; integers wrap around, booleans are and-ed. */
    public static final ReduceOp PRODUCT = new ReduceOp(Kind.PRODUCT, 1);

    /** The smallest value; NaN if any is NaN. */
    public static final ReduceOp MIN = new ReduceOp(Kind.MIN, 1);

    /** The largest value; NaN if any is NaN. */
    public static final ReduceOp MAX = new ReduceOp(Kind.MAX, 1);

    /** The bits that all have; integers and booleans only. */
    public static final ReduceOp BAND = new ReduceOp(Kind.BAND, 1);

    /** The bits that any has; integers and booleans only. */
    public static final ReduceOp BOR = new ReduceOp(Kind.BOR, 1);

    /** The bits that an odd number of ranks has; integers and booleans only. */
    public static final ReduceOp BXOR = new ReduceOp(Kind.BXOR, 1);

    private static final List<ReduceOp> CONSTANTS =
            List.of(SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR);

    private final Kind kind;
    private final double factor;

    private ReduceOp(Kind kind, double factor) {
        this.kind = kind;
        this.factor = factor;
    }

    /**
     * Returns the sum of the contributions, each multiplied by a number first; floating-point types
     * only. The factor is rounded to the precision in which the sum is accumulated, and so is each
     * product.
     *
     * @param factor the factor; the same on all ranks
     * @return the reduce op
     */
    public static ReduceOp premulSum(double factor) {
        return new ReduceOp(Kind.PREMUL_SUM, factor);
    }

    /**
     * Returns the reduce ops that take no parameter.
     *
     * @return the constants of this class
     */
    public static List<ReduceOp> constants() {
        return CONSTANTS;
    }

    /**
     * Returns the operator.
     *
     * @return the kind
     */
    public Kind kind() {
        return kind;
    }

    /**
     * Returns what contributions are multiplied by.
     *
     * @return the factor of {@link #premulSum}; 1 with other reduce ops
     */
    public double factor() {
        return factor;
    }

    /**
     * Tells whether the operator has a meaning for an element type. A backend may support less.
     *
     * @param type the element type
     * @return whether it is defined
     */
    public boolean isDefinedFor(ScalarType type) {
        return isDefined(kind, type);
    }

    /**
     * Tells whether a kind of reduction is defined for elements of a type.
     *
     * @param kind the kind
     * @param type the element type
     * @return whether it is defined
     */
    public static boolean isDefined(Kind kind, ScalarType type) {
        switch (Required.argument("kind", kind)) {
            case AVG:
            case PREMUL_SUM:
                return type.isFloatingPoint();
            case BAND:
            case BOR:
            case BXOR:
                return type.isInteger() || type == ScalarType.BOOL;
            case MIN:
            case MAX:
                return type.isFloatingPoint() || type.isInteger() || type == ScalarType.BOOL;
            default:
                return true;
        }
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof ReduceOp op
                && op.kind == kind
                && Double.doubleToLongBits(op.factor) == Double.doubleToLongBits(factor);
    }

    @Override
    public int hashCode() {
        return Objects.hash(kind, factor);
    }

    /**
     * Returns the operator and its factor.
     *
     * @return a text such as {@code SUM} or {@code PREMUL_SUM(0.5)}
     */
    @Override
    public String toString() {
        return kind == Kind.PREMUL_SUM ? kind + "(" + factor + ")" : kind.name();
    }
}
