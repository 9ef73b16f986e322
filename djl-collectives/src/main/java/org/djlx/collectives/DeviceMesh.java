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
 * equal this rank's, ordered by their coordinate in the dimension; {@code group(name).ranks()}
 * names them. Immutable.
 *
 * <pre>{@code
 * DeviceMesh mesh = DeviceMesh.create(group, new int[] {2, 2, 2}, "pp", "dp", "tp");
 * ProcessGroup replicas = mesh.slice("pp", "dp").flatten("pp_dp").group("pp_dp"); // 4 ranks
 * }</pre>
 */
public final class DeviceMesh {

    private final ProcessGroup parent;
    private final List<Dim> dims;

    /**
     * A dimension, and this rank in it: its coordinate, and its distance (offset) in the parent
     * group from the rank at coordinate 0.
     */
    private record Dim(String name, int size, int coordinate, int offset, ProcessGroup group) {

        @Override
        public String toString() {
            return name + " " + size;
        }
    }

    private DeviceMesh(ProcessGroup parent, List<Dim> dims) {
        this.parent = parent;
        this.dims = List.copyOf(dims);
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
        String mesh =
                IntStream.range(0, shape.length)
                        .mapToObj(dim -> names[dim] + " " + shape[dim])
                        .toList()
                        .toString();
        List<String> meshes = new ObjectCollectives(parent).allGatherObject(mesh);
        for (int rank = 0; rank < meshes.size(); rank++) {
            if (!meshes.get(rank).equals(mesh)) {
                throw new CollectiveMismatchException(
                        String.format(
                                "DeviceMesh.create: the ranks of group '%s' pass different"
                                        + " arguments: rank %d %s, rank %d %s; pass the same on all"
                                        + " ranks",
                                parent.name(), parent.rank(), mesh, rank, meshes.get(rank)));
            }
        }
        List<Dim> dims = new ArrayList<>();
        int stride = parent.worldSize();
        for (int dim = 0; dim < shape.length; dim++) {
            stride /= shape[dim];
            int coordinate = parent.rank() / stride % shape[dim];
            dims.add(subGroup(parent, names[dim], shape[dim], coordinate, coordinate * stride));
        }
        return new DeviceMesh(parent, dims);
    }

    private static Dim subGroup(
            ProcessGroup parent, String name, int size, int coordinate, int offset) {
        // The rank at coordinate 0 names the sub-group.
        ProcessGroup group = parent.split(parent.rank() - offset, coordinate);
        return new Dim(name, size, coordinate, offset, group);
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

    private Dim dim(String name) {
        Required.argument("the name of a dimension", name);
        return dims.stream()
                .filter(dim -> dim.name().equals(name))
                .findFirst()
                .orElseThrow(
                        () ->
                                new IllegalArgumentException(
                                        "\"%s\" is no dimension of this mesh; use one of %s"
                                                .formatted(name, names())));
    }

    /**
     * Returns the mesh of some dimensions: the ranks whose coordinates in the other dimensions
     * equal this rank's. The counterpart of PyTorch's {@code mesh["pp", "dp"]}. Nothing is sent,
     * and the sub-groups are those of this mesh.
     *
     * @param names dimensions of this mesh, each once, the outermost first
     * @throws IllegalArgumentException if the names are not dimensions in the order of this mesh
     */
    public DeviceMesh slice(String... names) {
        Required.argument("DeviceMesh.slice: names", names);
        List<Dim> sliced = Arrays.stream(names).map(this::dim).toList();
        if (sliced.isEmpty() || !sliced.equals(dims.stream().filter(sliced::contains).toList())) {
            throw new IllegalArgumentException(
                    "DeviceMesh.slice: names %s; pass one or more of %s, each once, in this order"
                            .formatted(Arrays.toString(names), names()));
        }
        return new DeviceMesh(parent, sliced);
    }

    /**
     * Returns the ranks of this mesh as a mesh of one dimension, in row-major order, with a
     * sub-group of its own; the counterpart of PyTorch's {@code flatten}. All ranks of the group
     * that the whole mesh was created of call it.
     *
     * @param name the name of the new dimension
     * @throws CollectiveException if not all ranks call in time
     */
    public DeviceMesh flatten(String name) {
        Required.argument("DeviceMesh.flatten: name", name);
        int size = 1;
        int coordinate = 0;
        int offset = 0;
        for (Dim dim : dims) {
            size *= dim.size();
            coordinate = coordinate * dim.size() + dim.coordinate();
            offset += dim.offset();
        }
        return new DeviceMesh(parent, List.of(subGroup(parent, name, size, coordinate, offset)));
    }

    /**
     * Returns this rank's sub-group along a dimension, of {@link #size} ranks; this rank is number
     * {@link #localRank} in it. The caller destroys it; destroying the parent group destroys it,
     * too.
     */
    public ProcessGroup group(String name) {
        return dim(name).group();
    }

    /** {@return the number of ranks along a dimension} */
    public int size(String name) {
        return dim(name).size();
    }

    /**
     * Returns this rank's coordinate in a dimension, from 0, which is its rank in that {@link
     * #group}.
     */
    public int localRank(String name) {
        return dim(name).coordinate();
    }

    /** {@return this rank's coordinate in each dimension, the outermost first} */
    public List<Integer> coordinates() {
        return dims.stream().map(Dim::coordinate).toList();
    }

    /** {@return the names of the dimensions, the outermost first} */
    public List<String> names() {
        return dims.stream().map(Dim::name).toList();
    }

    /** Returns the size of each dimension, such as {@code [dp 2, tp 4]}. */
    @Override
    public String toString() {
        return dims.toString();
    }
}
