// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import java.util.List;
import java.util.Objects;
import org.djlx.nativeops.torch.ScalarType;

/**
 * An element-wise reduction over the ranks; the counterpart of {@code torch.distributed.ReduceOp}.
 *
 * <p>Numerics:
 *
 * <ul>
 *   <li>{@code shm}, and {@code cuda_p2p} where it does not use NCCL: in rank order; 16-bit
 *       floating-point types are accumulated in float32 and rounded once, other types in their own
 *       precision. The same inputs give the same bits in every run.
 *   <li>NCCL: the order depends on the size and the GPU topology, and 16-bit types may be rounded
 *       after every rank.
 * </ul>
 */
public final class ReduceOp {

    /** The reductions without their parameters. */
    public enum Kind {
        SUM,
        AVG,
        PRODUCT,
        MIN,
        MAX,
        BAND,
        BOR,
        BXOR,
        /** See {@link ReduceOp#premulSum}. */
        PREMUL_SUM;

        /** {@return whether this kind of reduction is defined for an element type} */
        public boolean isDefinedFor(ScalarType type) {
            return switch (this) {
                case AVG, PREMUL_SUM -> type.real().isFloatingPoint();
                case PRODUCT -> type.real() == type; // Not of complex numbers, as in c10d.
                case BAND, BOR, BXOR -> type.isInteger() || type == ScalarType.BOOL;
                case MIN, MAX ->
                        type.isFloatingPoint() || type.isInteger() || type == ScalarType.BOOL;
                case SUM -> true;
            };
        }
    }

    /** The sum. Integers wrap around; for booleans, logical or. */
    public static final ReduceOp SUM = new ReduceOp(Kind.SUM, 1);

    /** The mean: the sum divided by the world size. Floating-point and complex types only. */
    public static final ReduceOp AVG = new ReduceOp(Kind.AVG, 1);

    /** The product. Integers wrap around; for booleans, logical and. Not for complex types. */
    public static final ReduceOp PRODUCT = new ReduceOp(Kind.PRODUCT, 1);

    /** The minimum; NaN if any value is NaN. */
    public static final ReduceOp MIN = new ReduceOp(Kind.MIN, 1);

    /** The maximum; NaN if any value is NaN. */
    public static final ReduceOp MAX = new ReduceOp(Kind.MAX, 1);

    /** Bitwise and. Integers and booleans only. */
    public static final ReduceOp BAND = new ReduceOp(Kind.BAND, 1);

    /** Bitwise or. Integers and booleans only. */
    public static final ReduceOp BOR = new ReduceOp(Kind.BOR, 1);

    /** Bitwise exclusive or. Integers and booleans only. */
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
     * {@return a reduction that multiplies each contribution by a factor, the same on all ranks,
     * and sums the products} Floating-point and complex types only. The factor and each product are
     * rounded to the precision of the accumulation.
     */
    public static ReduceOp premulSum(double factor) {
        return new ReduceOp(Kind.PREMUL_SUM, factor);
    }

    /** {@return the reductions without a parameter: the constants of this class} */
    public static List<ReduceOp> constants() {
        return CONSTANTS;
    }

    /** {@return the kind of reduction} */
    public Kind kind() {
        return kind;
    }

    /** {@return the factor of {@link #premulSum}; 1 for other reductions} */
    public double factor() {
        return factor;
    }

    /**
     * {@return whether the reduction is defined for an element type} A backend may support fewer
     * types.
     */
    public boolean isDefinedFor(ScalarType type) {
        return kind.isDefinedFor(type);
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
     * {@return the kind and, if it has one, the factor, such as {@code SUM} or {@code
     * PREMUL_SUM(0.5)}}
     */
    @Override
    public String toString() {
        return kind == Kind.PREMUL_SUM ? kind + "(" + factor + ")" : kind.name();
    }
}
