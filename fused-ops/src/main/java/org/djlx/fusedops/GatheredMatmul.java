// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import ai.djl.ndarray.NDArray;
import java.util.List;
import java.util.Optional;

/** The result of {@link FusedOps#allGatherMatmul}. The caller closes the arrays. */
public final class GatheredMatmul {

    private final NDArray gathered;
    private final List<NDArray> outputs;

    GatheredMatmul(NDArray gathered, List<NDArray> outputs) {
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

    void close() {
        outputs.forEach(NDArray::close);
        if (gathered != null) {
            gathered.close();
        }
    }
}
