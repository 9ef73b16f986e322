// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.cost;

import java.util.List;
import org.djlx.nativeops.torch.ScalarType;

/**
 * A fused operator with its sizes on one rank.
 *
 * <ul>
 *   <li>The same on all ranks: operator, type, number of ranks and rows. Also the inner dimension
 *       of all-gather + matmul, and the columns of matmul + reduce-scatter.
 *   <li>May differ between ranks: the columns of all-gather + matmul, and the inner dimension of
 *       matmul + reduce-scatter.
 * </ul>
 *
 * @param rows the rows of a rank's shard of A, or of its part of the product
 * @param columns the columns of each of this rank's Bs; matmul + reduce-scatter has one B
 * @param inner the columns of this rank's A
 */
public record Workload(
        FusedOperator operator,
        ScalarType type,
        int ranks,
        long rows,
        List<Long> columns,
        long inner) {

    public Workload {
        if (operator == null || type == null || columns == null) {
            throw new IllegalArgumentException(
                    "a workload needs an operator, a type and columns; one of them is null");
        }
        columns = List.copyOf(columns);
        if (ranks < 1 || columns.isEmpty()) {
            throw new IllegalArgumentException(
                    "%s needs 1 or more ranks and 1 or more Bs, not %d ranks and columns %s"
                            .formatted(operator, ranks, columns));
        }
        if (rows < 0 || inner < 0 || columns.stream().anyMatch(n -> n < 0)) {
            throw new IllegalArgumentException(
                    "%s: sizes must be at least 0, not %d rows, columns %s and inner %d"
                            .formatted(operator, rows, columns, inner));
        }
    }

    /**
     * Divides an operator among ranks for tensor parallelism.
     *
     * @param operator all-gather + matmul of (M / ranks, K) and (K, N / ranks), or matmul +
     *     reduce-scatter of (M, K / ranks) and (K / ranks, N)
     * @throws IllegalArgumentException if a size is not divisible by the number of ranks
     */
    public static Workload unsharded(
            FusedOperator operator, ScalarType type, int ranks, long m, long n, long k) {
        if (ranks < 1) {
            throw new IllegalArgumentException(operator + " needs 1 or more ranks, not " + ranks);
        }
        boolean gather = operator == FusedOperator.ALL_GATHER_MATMUL;
        long divided = gather ? n : k;
        if (m % ranks != 0 || divided % ranks != 0) {
            throw new IllegalArgumentException(
                    "%s: M = %d and %s = %d must be divisible by the number of ranks, %d"
                            .formatted(operator, m, gather ? "N" : "K", divided, ranks));
        }
        return new Workload(
                operator,
                type,
                ranks,
                m / ranks,
                List.of(gather ? n / ranks : n),
                gather ? k : k / ranks);
    }

    /** Returns whether A is gathered. Otherwise the product is scattered. */
    boolean isGather() {
        return operator == FusedOperator.ALL_GATHER_MATMUL;
    }

    /**
     * {@return the size that may differ between ranks: the columns of all Bs of all-gather +
     * matmul, the inner dimension of matmul + reduce-scatter}
     */
    public long own() {
        return isGather() ? allColumns() : inner;
    }

    /** {@return a copy with another value of the {@linkplain #own size} that may differ} */
    public Workload withOwn(long size) {
        return isGather()
                ? new Workload(operator, type, ranks, rows, List.of(size), inner)
                : new Workload(operator, type, ranks, rows, columns, size);
    }

    long allColumns() {
        return columns.stream().mapToLong(Long::longValue).sum();
    }

    /**
     * {@return the number of bytes that a rank sends to one peer: a shard of A, or a part of the
     * product}
     */
    public long partBytes() {
        return isGather()
                ? rows * inner * type.itemSize()
                : rows * allColumns() * typeOfProduct(type).itemSize();
    }

    /** {@return the element type of a product: bfloat16 for float8, otherwise that of A and B} */
    public static ScalarType typeOfProduct(ScalarType type) {
        return type == ScalarType.FLOAT8_E4M3FN ? ScalarType.BFLOAT16 : type;
    }

    /** {@return the number of bytes that each GPU receives from all peers together} */
    public long bytesIn() {
        return (ranks - 1) * partBytes();
    }
}
