/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops.cuda;

/**
 * How many blocks of how many threads a kernel is launched with.
 *
 * @param gridX the blocks along x
 * @param gridY the blocks along y
 * @param gridZ the blocks along z
 * @param blockX the threads of a block along x
 * @param blockY the threads of a block along y
 * @param blockZ the threads of a block along z
 * @param sharedBytes the dynamic shared memory of a block, in bytes; above 48 KiB see {@link
 *     CudaKernel#allowSharedMemory}
 * @param cooperative whether all blocks must run at once, so that they can wait for each other;
 *     where they cannot, the launch fails with {@code CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE}
 * @param dependent whether it may begin while the kernel queued before it still runs, if that lets
 *     it (programmatic dependent launch): the kernel itself waits before it touches what others
 *     write. Not together with {@code cooperative}; before compute capability 9.0 and CUDA 12.3 it
 *     begins behind
 */
public record LaunchSize(
        int gridX,
        int gridY,
        int gridZ,
        int blockX,
        int blockY,
        int blockZ,
        int sharedBytes,
        boolean cooperative,
        boolean dependent) {

    /**
     * Checks the numbers.
     *
     * @param gridX the blocks along x
     * @param gridY the blocks along y
     * @param gridZ the blocks along z
     * @param blockX the threads of a block along x
     * @param blockY the threads of a block along y
     * @param blockZ the threads of a block along z
     * @param sharedBytes the dynamic shared memory of a block, in bytes
     * @param cooperative whether all blocks must run at once
     * @param dependent whether it may begin while the kernel before still runs
     * @throws IllegalArgumentException if one is out of range
     */
    public LaunchSize {
        if (Math.min(Math.min(gridX, gridY), gridZ) < 1
                || Math.min(Math.min(blockX, blockY), blockZ) < 1
                || sharedBytes < 0) {
            throw new IllegalArgumentException(
                    String.format(
                            "a launch of %d x %d x %d blocks of %d x %d x %d threads with %d bytes"
                                    + " of shared memory is not possible",
                            gridX, gridY, gridZ, blockX, blockY, blockZ, sharedBytes));
        }
        if (cooperative && dependent) {
            throw new IllegalArgumentException("a cooperative launch cannot be dependent");
        }
    }

    /**
     * Returns a size along one dimension.
     *
     * @param blocks how many blocks
     * @param threads how many threads in each
     * @return the size, without dynamic shared memory, not cooperative
     */
    public static LaunchSize of(int blocks, int threads) {
        return new LaunchSize(blocks, 1, 1, threads, 1, 1, 0, false, false);
    }

    /**
     * Returns the same size with other blocks along y and z.
     *
     * @param y the blocks along y
     * @param z the blocks along z
     * @return the size
     */
    public LaunchSize withGrid(int y, int z) {
        return new LaunchSize(
                gridX, y, z, blockX, blockY, blockZ, sharedBytes, cooperative, dependent);
    }

    /**
     * Returns the same size with dynamic shared memory.
     *
     * @param byteSize how much a block has, in bytes
     * @return the size
     */
    public LaunchSize withShared(int byteSize) {
        return new LaunchSize(
                gridX, gridY, gridZ, blockX, blockY, blockZ, byteSize, cooperative, dependent);
    }

    /**
     * Returns the same size for a cooperative launch.
     *
     * @return the size
     */
    public LaunchSize asCooperative() {
        return new LaunchSize(
                gridX, gridY, gridZ, blockX, blockY, blockZ, sharedBytes, true, dependent);
    }

    /**
     * Returns the same size for a launch that may begin while the kernel before still runs.
     *
     * @return the size
     */
    public LaunchSize asDependent() {
        return new LaunchSize(
                gridX, gridY, gridZ, blockX, blockY, blockZ, sharedBytes, cooperative, true);
    }
}
