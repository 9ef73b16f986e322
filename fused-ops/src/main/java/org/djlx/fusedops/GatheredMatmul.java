// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import ai.djl.ndarray.NDArray;
import java.util.List;
import java.util.Optional;

/** The result of {@link FusedOps#allGatherMatmul}. The caller closes the arrays. */
public final class GatheredMatmul {

    private final NDArray gathered;
    private final List<NDArray> outputs;

    /**
     * Names the arrays of a result.
     *
     * @param gathered the gathered A; null if the caller did not ask for it
     * @param outputs the product of A with each B
     */
    public GatheredMatmul(NDArray gathered, List<NDArray> outputs) {
        if (outputs == null) {
            throw new IllegalArgumentException("outputs is null: pass the product with each B");
        }
        this.gathered = gathered;
        this.outputs = List.copyOf(outputs);
    }

    /** {@return the gathered A; empty unless the caller asked for it} */
    public Optional<NDArray> gathered() {
        return Optional.ofNullable(gathered);
    }

    /** {@return the product of A with each B, in the order of the Bs} */
    public List<NDArray> outputs() {
        return outputs;
    }
}
