// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.stream.IntStream;
import org.djlx.nativeops.host.Required;

/**
 * The ranks of a group as a grid with named dimensions, and this rank's sub-group along each
 * dimension; the counterpart of PyTorch's {@code DeviceMesh}.
 *
 * <pre>{@code
 * DeviceMesh mesh = DeviceMesh.create(group, new int[] {2, 4}, "dp", "tp"); // 8 ranks
 * ProcessGroup tensorParallel = mesh.group("tp"); // ranks 0 to 3, or 4 to 7
 * ProcessGroup dataParallel = mesh.group("dp"); // ranks 0 and 4, or 1 and 5, …
 * }</pre>
 *
 * <p>Ranks fill the grid in row-major order: neighbours along the last dimension have consecutive
 * ranks. The sub-group along a dimension has the ranks whose coordinates in all other dimensions
 * equal this rank's, ordered by their coordinate in the dimension. Immutable.
 */
public final class DeviceMesh {

    private final List<String> names;
    private final int[] shape;
    private final int[] coordinates;
    private final List<ProcessGroup> groups = new ArrayList<>();

    private DeviceMesh(List<String> names, int[] shape, int rank) {
        this.names = names;
        this.shape = shape;
        coordinates = new int[shape.length];
        int rest = rank;
        for (int dim = shape.length - 1; dim >= 0; dim--) {
            coordinates[dim] = rest % shape[dim];
            rest /= shape[dim];
        }
    }

    /**
     * Arranges the ranks of a group in a grid with named dimensions and creates this rank's
     * sub-group along each dimension; the counterpart of PyTorch's {@code init_device_mesh}. All
     * ranks of the group call it.
     *
     * @param shape the size of each dimension; their product is the group's world size
     * @param names a name for each dimension, all distinct
     * @throws IllegalArgumentException if the shape does not fit the ranks or the names; before
     *     anything is sent
     * @throws CollectiveException if the ranks pass different arguments, or do not all call in time
     */
    public static DeviceMesh create(ProcessGroup parent, int[] shape, String... names) {
        check(parent, shape, names);
        DeviceMesh mesh = new DeviceMesh(List.of(names), shape.clone(), parent.rank());
        List<String> meshes = new ObjectCollectives(parent).allGatherObject(mesh.toString());
        for (int rank = 0; rank < meshes.size(); rank++) {
            if (!meshes.get(rank).equals(mesh.toString())) {
                throw new CollectiveMismatchException(
                        String.format(
                                "DeviceMesh.create: the ranks of group '%s' pass different"
                                        + " arguments: rank %d %s, rank %d %s; pass the same on all"
                                        + " ranks",
                                parent.name(), parent.rank(), mesh, rank, meshes.get(rank)));
            }
        }
        for (int dim = 0; dim < shape.length; dim++) {
            int stride = 1;
            for (int inner = dim + 1; inner < shape.length; inner++) {
                stride *= shape[inner];
            }
            // The rank at coordinate 0 of the dimension names the sub-group.
            int first = parent.rank() - mesh.coordinates[dim] * stride;
            mesh.groups.add(parent.split(first, mesh.coordinates[dim]));
        }
        return mesh;
    }

    private static void check(ProcessGroup parent, int[] shape, String... names) {
        Required.argument("DeviceMesh.create: parent", parent);
        Required.argument("DeviceMesh.create: shape", shape);
        Required.argument("DeviceMesh.create: names", names);
        for (String name : names) {
            Required.argument("DeviceMesh.create: a name", name);
        }
        String text = Arrays.toString(shape) + ", names " + Arrays.toString(names);
        if (shape.length == 0 || shape.length != names.length) {
            throw new IllegalArgumentException(
                    "DeviceMesh.create: shape " + text + "; pass one name for each dimension");
        }
        if (new HashSet<>(List.of(names)).size() < names.length) {
            throw new IllegalArgumentException(
                    "DeviceMesh.create: shape " + text + "; the names must differ");
        }
        long ranks = 1;
        for (int size : shape) {
            ranks = size < 1 ? 0 : Math.min(ranks * size, Integer.MAX_VALUE);
        }
        if (ranks != parent.worldSize()) {
            throw new IllegalArgumentException(
                    String.format(
                            "DeviceMesh.create: shape %s; the product of its sizes must be %d, the"
                                    + " number of ranks of group '%s'",
                            text, parent.worldSize(), parent.name()));
        }
    }

    private int dim(String name) {
        int dim = names.indexOf(Required.argument("the name of a dimension", name));
        if (dim < 0) {
            throw new IllegalArgumentException(
                    "\"" + name + "\" is no dimension of this mesh; use one of " + names);
        }
        return dim;
    }

    /**
     * Returns this rank's sub-group along a dimension, of {@link #size} ranks; this rank is number
     * {@link #localRank} in it. The caller destroys it; destroying the parent group destroys it,
     * too.
     */
    public ProcessGroup group(String name) {
        return groups.get(dim(name));
    }

    /** {@return the number of ranks along a dimension} */
    public int size(String name) {
        return shape[dim(name)];
    }

    /**
     * Returns this rank's coordinate in a dimension, from 0, which is its rank in that {@link
     * #group}.
     */
    public int localRank(String name) {
        return coordinates[dim(name)];
    }

    /** {@return the names of the dimensions, the outermost first} */
    public List<String> names() {
        return names;
    }

    /** Returns the size of each dimension, such as {@code [dp 2, tp 4]}. */
    @Override
    public String toString() {
        return IntStream.range(0, shape.length)
                .mapToObj(dim -> names.get(dim) + " " + shape[dim])
                .toList()
                .toString();
    }
}
