// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.cost;

/** The fused operators, by the names of their methods in {@link org.djlx.fusedops.FusedOps}. */
public enum FusedOperator {
    /** A is gathered along its rows, then multiplied. */
    ALL_GATHER_MATMUL("allGatherMatmul"),
    /** Products are summed over the ranks. Each rank gets some rows of the sum. */
    MATMUL_REDUCE_SCATTER("matmulReduceScatter");

    private final String method;

    FusedOperator(String method) {
        this.method = method;
    }

    @Override
    public String toString() {
        return method;
    }
}
