// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import java.util.Optional;
import org.djlx.collectives.safetensors.TensorFiles;
import org.djlx.nativeops.host.CpuKernels;

/** Weight files with matrices in quantized blocks, which kernels multiply by. */
public interface BlockFiles extends TensorFiles {

    /**
     * Rows of a matrix.
     *
     * @param type the type of the blocks, as in {@link CpuKernels}
     * @param rows the address of the first block of each row; 0 for a row of zeros
     * @param copy the blocks of all rows, if they are not stored as they are in the files; else
     *     null
     */
    record Blocks(int type, long[] rows, NDArray copy) {}

    /**
     * Returns the inputs of a group with one scale and one zero in all matrices that have blocks:
     * 32, 64 or 128 if these are {@link CpuKernels#INT4_ZEROS}; otherwise 0.
     */
    default int int4Group() {
        return 0;
    }

    /**
     * Returns a range of columns of some rows of a matrix.
     *
     * @param rows the indices of the rows; -1 for a row of zeros
     * @param from the first column
     * @param to the last column + 1
     * @param manager owns blocks that are not stored as they are in the files
     * @return the blocks, valid until the files or the manager are closed; empty if the matrix has
     *     no blocks, or the range does not begin and end between blocks
     */
    Optional<Blocks> blocks(String name, long[] rows, long from, long to, NDManager manager);
}
