/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops;

import ai.djl.ndarray.NDArray;
import java.util.List;
import java.util.Optional;

/** What {@link FusedOps#allGatherMatmul} returns; the arrays are the caller's to close. */
public final class GatheredMatmul {

    private final NDArray gathered;
    private final List<NDArray> outputs;

    GatheredMatmul(NDArray gathered, List<NDArray> outputs) {
        this.gathered = gathered;
        this.outputs = List.copyOf(outputs);
    }

    /**
     * Returns the gathered A.
     *
     * @return the array, or empty if it was not asked for
     */
    public Optional<NDArray> gathered() {
        return Optional.ofNullable(gathered);
    }

    /**
     * Returns the products.
     *
     * @return the product of A with each B, in their order
     */
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
