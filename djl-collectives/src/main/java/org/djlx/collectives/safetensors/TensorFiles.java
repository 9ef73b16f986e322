// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.safetensors;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import java.nio.file.Path;
import java.util.Collection;
import java.util.Optional;

/** Open files of named tensors, of which slices are read. Several threads may read. */
public interface TensorFiles extends AutoCloseable {

    /** {@return the type and shape of all tensors} */
    Collection<TensorSpec> specs();

    /** {@return whether a tensor exists} */
    boolean contains(String name);

    /** {@return the type and shape of a tensor} */
    TensorSpec spec(String name);

    /** {@return the file that a tensor is in} */
    Path file(String name);

    /**
     * Reads a part of a tensor.
     *
     * @param to the last index + 1
     * @param destination an array of the shape of the part, on any device and of any element type;
     *     elements are converted. No gradient is recorded
     * @throws IllegalArgumentException if there is no such tensor, dimension or range, the shapes
     *     differ, or the files are closed
     */
    void read(String name, int dimension, long from, long to, NDArray destination);

    /**
     * Returns a part of a tensor without a copy. It must not be written, and stays valid after
     * {@link #close}.
     *
     * @return the part, on the CPU; empty if it must be read
     */
    Optional<NDArray> view(String name, int dimension, long from, long to, NDManager manager);

    /** Reads all files into memory, for {@linkplain #view views} that are used often. */
    void populate();

    @Override
    void close();
}
