// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

/**
 * The grid and thread blocks of a kernel launch.
 *
 * @param sharedBytes the dynamic shared memory of a block in bytes; more than 48 KiB requires
 *     {@link CudaKernel#allowSharedMemory}
 * @param dependent whether this is a programmatic dependent launch: if the previous kernel allows
 *     it, this kernel may start while the previous one still runs. The kernel must wait before it
 *     accesses data of other kernels. Before compute capability 9.0 and CUDA 12.3 this is an
 *     ordinary launch
 * @param cooperative whether all blocks start together, so that they may wait for each other. More
 *     blocks than the GPU runs at a time are refused by the driver
 */
public record LaunchSize(
        int gridX,
        int gridY,
        int gridZ,
        int blockX,
        int blockY,
        int blockZ,
        int sharedBytes,
        boolean dependent,
        boolean cooperative) {

    public LaunchSize {
        if (Math.min(Math.min(gridX, gridY), gridZ) < 1
                || Math.min(Math.min(blockX, blockY), blockZ) < 1
                || sharedBytes < 0) {
            throw new IllegalArgumentException(
                    String.format(
                            "a launch of %d x %d x %d blocks of %d x %d x %d threads with %d bytes"
                                + " of shared memory is invalid: blocks and threads must be 1 or"
                                + " more, and bytes 0 or more",
                            gridX, gridY, gridZ, blockX, blockY, blockZ, sharedBytes));
        }
    }

    /** {@return a one-dimensional size, without dynamic shared memory} */
    public static LaunchSize of(int blocks, int threads) {
        return new LaunchSize(blocks, 1, 1, threads, 1, 1, 0, false, false);
    }

    /** {@return this size with at most so many blocks along x, at least 1} */
    public LaunchSize withBlocksUpTo(int most) {
        return gridX <= most
                ? this
                : new LaunchSize(
                        most,
                        gridY,
                        gridZ,
                        blockX,
                        blockY,
                        blockZ,
                        sharedBytes,
                        dependent,
                        cooperative);
    }

    /** {@return this size with other blocks along y and z} */
    public LaunchSize withGrid(int y, int z) {
        return new LaunchSize(
                gridX, y, z, blockX, blockY, blockZ, sharedBytes, dependent, cooperative);
    }

    /** {@return this size with dynamic shared memory} */
    public LaunchSize withShared(int byteSize) {
        return new LaunchSize(
                gridX, gridY, gridZ, blockX, blockY, blockZ, byteSize, dependent, cooperative);
    }

    /** {@return this size for a programmatic dependent launch} */
    public LaunchSize asDependent() {
        return new LaunchSize(
                gridX, gridY, gridZ, blockX, blockY, blockZ, sharedBytes, true, cooperative);
    }

    /** {@return this size for a launch whose blocks all start together} */
    public LaunchSize asCooperative() {
        return new LaunchSize(
                gridX, gridY, gridZ, blockX, blockY, blockZ, sharedBytes, dependent, true);
    }
}
