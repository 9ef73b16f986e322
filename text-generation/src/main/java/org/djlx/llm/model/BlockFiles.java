// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

import java.util.Arrays;
import java.util.Optional;
import org.djlx.collectives.safetensors.TensorFiles;
import org.djlx.nativeops.host.CpuKernels;

/** Files with matrices in quantized blocks, from which CPUs compute. */
public interface BlockFiles extends TensorFiles {

    /**
     * Rows of blocks where the file is mapped.
     *
     * @param type one of {@link CpuKernels}
     * @param rows the address of the first block of each row; 0 for a row of zeros
     */
    record Blocks(int type, long[] rows) {

        /** {@return the rows, and rows of zeros after them} */
        public Blocks padded(int count) {
            return new Blocks(type, Arrays.copyOf(rows, count));
        }
    }

    /**
     * Returns rows of a matrix.
     *
     * @param rows the indices of the rows
     * @param to the last column + 1
     * @return the blocks, valid until the files are closed; empty if the matrix is not quantized,
     *     or the columns are not whole blocks
     */
    Optional<Blocks> blocks(String name, long[] rows, long from, long to);
}
