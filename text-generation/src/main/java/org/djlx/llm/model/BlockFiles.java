// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

import java.util.Arrays;
import java.util.Optional;
import org.djlx.collectives.safetensors.TensorFiles;
import org.djlx.nativeops.host.CpuKernels;

/** Weight files with matrices in quantized blocks, which CPU kernels multiply by. */
public interface BlockFiles extends TensorFiles {

    /**
     * Rows of a matrix, in the memory to which the file is mapped.
     *
     * @param type the type of the blocks, as in {@link CpuKernels}
     * @param rows the address of the first block of each row; 0 for a row of zeros
     */
    record Blocks(int type, long[] rows) {

        /** {@return these rows, followed by rows of zeros up to {@code count} rows in all} */
        public Blocks padded(int count) {
            return new Blocks(type, Arrays.copyOf(rows, count));
        }
    }

    /**
     * Returns a range of columns of some rows of a matrix.
     *
     * @param rows the indices of the rows
     * @param from the first column
     * @param to the last column + 1
     * @return the blocks, valid until the files are closed; empty if the matrix is not quantized,
     *     or the range does not begin and end between blocks
     */
    Optional<Blocks> blocks(String name, long[] rows, long from, long to);
}
