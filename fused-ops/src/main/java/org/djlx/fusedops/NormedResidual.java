// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import ai.djl.ndarray.NDArray;

/**
 * The result of {@link FusedOps#allReduceRmsNorm}. Both arrays have the shape of the partial, and
 * its type, unless the norm is in e4m3.
 */
public final class NormedResidual {

    private final NDArray residual;
    private final NDArray norm;

    /**
     * Names the arrays that results are written to.
     *
     * @param residual the residual for the next layer
     */
    public NormedResidual(NDArray residual, NDArray norm) {
        this.residual = residual;
        this.norm = norm;
    }

    /**
     * {@return the residual for the next layer: the old residual plus the sum of all ranks'
     * partials}
     */
    public NDArray residual() {
        return residual;
    }

    /** {@return the residual divided by the root mean square of its rows, times the weight} */
    public NDArray norm() {
        return norm;
    }
}
