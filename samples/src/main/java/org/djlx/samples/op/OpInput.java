// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.op;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;
import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Collectors;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * The source of the ranks' arrays: a file for each rank, one file that is split among the ranks, or
 * one file that all ranks read.
 *
 * @param pattern the name of the file; {rank} in it stands for the rank
 * @param names the arrays to take, in this order; empty for all
 * @param split the dimension along which each array is split into equal parts, one for each rank;
 *     null if arrays are not split
 * @param type the element type that arrays are converted to; null for the type in the file
 */
record OpInput(String pattern, List<String> names, Integer split, ScalarType type) {

    static final String RANK = "{rank}";

    static Path file(String pattern, int rank) {
        return Path.of(pattern.replace(RANK, Integer.toString(rank)));
    }

    /**
     * Reads the arrays of a rank.
     *
     * @param manager the manager that owns them, on the CPU
     * @return contiguous arrays
     * @throws IOException as {@link NpzFile#read}
     * @throws IllegalArgumentException if an array is missing or cannot be split
     */
    List<NDArray> read(NDManager manager, int rank, int worldSize) throws IOException {
        try (NDManager whole = manager.newSubManager()) {
            List<NDArray> arrays = new ArrayList<>();
            for (NDArray array : select(rank, NpzFile.read(whole, file(pattern, rank)))) {
                arrays.add(own(manager, split == null ? array : part(array, rank, worldSize)));
            }
            return arrays;
        }
    }

    /** Reads one array and returns the parts of all ranks. */
    List<NDArray> readParts(NDManager manager, int rank, int worldSize) throws IOException {
        try (NDManager whole = manager.newSubManager()) {
            List<NDArray> arrays = select(rank, NpzFile.read(whole, file(pattern, rank)));
            requireCount(arrays, 1, rank);
            List<NDArray> parts = new ArrayList<>();
            for (int owner = 0; owner < worldSize; owner++) {
                parts.add(own(manager, part(arrays.get(0), owner, worldSize)));
            }
            return parts;
        }
    }

    void requireCount(List<NDArray> arrays, int count, int rank) {
        if (arrays.size() != count) {
            throw new IllegalArgumentException(
                    String.format(
                            "%s: rank %d needs %d array%s, not %d",
                            file(pattern, rank),
                            rank,
                            count,
                            count == 1 ? "" : "s",
                            arrays.size()));
        }
    }

    private List<NDArray> select(int rank, NDList all) {
        if (names.isEmpty()) {
            return all;
        }
        List<NDArray> selected = new ArrayList<>();
        for (String name : names) {
            NDArray array = all.get(name);
            if (array == null) {
                throw new IllegalArgumentException(
                        String.format(
                                "%s has no array '%s', but %s",
                                file(pattern, rank),
                                name,
                                all.stream()
                                        .map(NDArray::getName)
                                        .collect(Collectors.joining(", "))));
            }
            selected.add(array);
        }
        return selected;
    }

    private NDArray part(NDArray array, int rank, int worldSize) {
        Shape shape = array.getShape();
        int dim = split < 0 ? split + shape.dimension() : split;
        if (dim < 0 || dim >= shape.dimension() || shape.get(dim) % worldSize != 0) {
            throw new IllegalArgumentException(
                    String.format(
                            "%s: array '%s' of shape %s cannot be split along dimension %d into %d"
                                    + " equal parts",
                            file(pattern, rank), array.getName(), shape, split, worldSize));
        }
        long size = shape.get(dim) / worldSize;
        return array.get(new NDIndex().addAllDim(dim).addSliceDim(rank * size, (rank + 1) * size));
    }

    /** Returns a copy that outlives the whole array. */
    private NDArray own(NDManager manager, NDArray array) {
        ScalarType own = type == null ? Torch.scalarType(array) : type;
        NDArray copy = Torch.empty(manager, array.getShape(), own);
        Torch.copy(copy, array);
        return copy;
    }
}
