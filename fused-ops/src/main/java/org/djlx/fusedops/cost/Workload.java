/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.cost;

import java.util.List;
import org.djlx.nativeops.torch.ScalarType;

/**
 * A fused operator with its sizes on one rank.
 *
 * <p>All ranks know operator, type, number of ranks and rows, and for matmul + reduce-scatter the
 * columns. The columns of an all-gather + matmul's Bs and the inner dimension of a matmul +
 * reduce-scatter are each rank's own.
 *
 * @param operator the operator
 * @param type the element type
 * @param ranks the number of ranks
 * @param rows of a rank's shard of A, or of its part of the product
 * @param columns of each of this rank's Bs, of which a matmul + reduce-scatter has one
 * @param inner the columns of this rank's A
 */
public record Workload(
        FusedOperator operator,
        ScalarType type,
        int ranks,
        long rows,
        List<Long> columns,
        long inner) {

    /**
     * Creates a workload.
     *
     * @param operator the operator
     * @param type the element type
     * @param ranks the number of ranks
     * @param rows of a rank's shard or part
     * @param columns of each of this rank's Bs
     * @param inner the columns of this rank's A
     * @throws IllegalArgumentException if an argument is null, a size is negative, or there is no
     *     rank or no B
     */
    public Workload {
        if (operator == null || type == null || columns == null) {
            throw new IllegalArgumentException("a workload's operator, type or columns are null");
        }
        columns = List.copyOf(columns);
        if (ranks < 1 || columns.isEmpty()) {
            throw new IllegalArgumentException(operator + " of " + ranks + " ranks, " + columns);
        }
        if (rows < 0 || inner < 0 || columns.stream().anyMatch(n -> n < 0)) {
            throw new IllegalArgumentException(
                    "%s has negative sizes: %d rows, %s columns, %d inner"
                            .formatted(operator, rows, columns, inner));
        }
    }

    /**
     * Divides an operator among ranks, as tensor parallelism does.
     *
     * @param operator all-gather + matmul of (M / ranks, K) and (K, N / ranks), or matmul +
     *     reduce-scatter of (M, K / ranks) and (K / ranks, N)
     * @param type the element type
     * @param ranks the number of ranks
     * @param m the rows of the unsharded A
     * @param n the columns of the unsharded B
     * @param k what they have in common
     * @return what a rank does
     * @throws IllegalArgumentException if a size is not divisible by the number of ranks
     */
    public static Workload unsharded(
            FusedOperator operator, ScalarType type, int ranks, long m, long n, long k) {
        if (ranks < 1) {
            throw new IllegalArgumentException(operator + " needs a rank, not " + ranks);
        }
        boolean gather = operator == FusedOperator.ALL_GATHER_MATMUL;
        long divided = gather ? n : k;
        if (m % ranks != 0 || divided % ranks != 0) {
            throw new IllegalArgumentException(
                    "%s divides M = %d and %s = %d among %d ranks, which do not divide them"
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

    /** Whether A is gathered; otherwise the product is scattered. */
    boolean isGather() {
        return operator == FusedOperator.ALL_GATHER_MATMUL;
    }

    /** The same with other columns of one B, or another inner dimension: what ranks differ in. */
    Workload withOwn(long size) {
        return isGather()
                ? new Workload(operator, type, ranks, rows, List.of(size), inner)
                : new Workload(operator, type, ranks, rows, columns, size);
    }

    /** The columns of all Bs. */
    long allColumns() {
        return columns.stream().mapToLong(Long::longValue).sum();
    }

    /**
     * Returns the size of what a rank sends to another.
     *
     * @return the size of a shard of A, or of a part of the product, in bytes
     */
    public long partBytes() {
        return rows * (isGather() ? inner : allColumns()) * type.itemSize();
    }

    /**
     * Returns how much comes into each GPU.
     *
     * @return the size of what all other ranks send to one, in bytes
     */
    public long bytesIn() {
        return (ranks - 1) * partBytes();
    }
}
