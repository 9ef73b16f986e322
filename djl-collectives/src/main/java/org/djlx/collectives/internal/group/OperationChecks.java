// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.group;

import ai.djl.ndarray.NDArray;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.Objects;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.spi.Backend;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation.Agreed;
import org.djlx.nativeops.torch.TensorInfo;
import org.djlx.nativeops.torch.Torch;

/** Checks the arguments of a rank's operations before communication starts. */
final class OperationChecks {

    private final Backend backend;
    private final int rank;
    private final int worldSize;

    OperationChecks(Backend backend, int rank, int worldSize) {
        this.backend = backend;
        this.rank = rank;
        this.worldSize = worldSize;
    }

    static Agreed agreed(TensorInfo tensor, ReduceOp op, int index) {
        return new Agreed(tensor.type(), tensor.sizes(), op, index);
    }

    static long count(long[] sizes) {
        return Arrays.stream(sizes).reduce(1, Math::multiplyExact);
    }

    /** Checks that a list is not null or empty, as c10d does, and contains no null. */
    static void present(Object operation, String role, List<?> list) {
        // Not contains(null), which immutable lists reject.
        if (list == null || list.isEmpty() || list.stream().anyMatch(Objects::isNull)) {
            String problem = list == null ? "null" : list.isEmpty() ? "empty" : list.toString();
            throw new IllegalArgumentException(
                    String.format(
                            "%s: %s is %s; pass at least one element, and no null",
                            operation, role, problem));
        }
    }

    /** Checks that the backend can move a tensor; returns its type, shape and address. */
    TensorInfo moved(OpType type, String role, NDArray tensor) {
        return tensor(type, role, tensor, null);
    }

    /** Checks that the backend can reduce a tensor; returns its type, shape and address. */
    TensorInfo reduced(OpType type, String role, NDArray tensor, ReduceOp op) {
        reduction(type, op);
        return tensor(type, role, tensor, op);
    }

    void reduction(OpType type, ReduceOp op) {
        if (op == null) {
            throw new IllegalArgumentException(type + ": op is null");
        }
    }

    private TensorInfo tensor(OpType type, String role, NDArray tensor, ReduceOp op) {
        if (tensor == null) {
            throw new IllegalArgumentException(type + ": " + role + " is null");
        }
        TensorInfo info;
        try {
            info = Torch.info(tensor);
        } catch (IllegalArgumentException e) { // For example a closed tensor.
            throw new IllegalArgumentException(type + ": " + role + ": " + e.getMessage(), e);
        }
        backend.check(type, tensor, info.type(), op);
        return info;
    }

    /**
     * Checks that the backend can move two tensors, or reduce them if {@code op} is not null; one
     * native call reads both.
     */
    TensorInfo[] both(
            OpType type,
            String role,
            NDArray tensor,
            String otherRole,
            NDArray other,
            ReduceOp op) {
        TensorInfo[] infos;
        try {
            infos = Torch.infos(Arrays.asList(tensor, other));
        } catch (IllegalArgumentException e) {
            tensor(type, role, tensor, op); // One of the two throws, and names the role.
            tensor(type, otherRole, other, op);
            throw e;
        }
        backend.check(type, tensor, infos[0].type(), op);
        backend.check(type, other, infos[1].type(), op);
        return infos;
    }

    /** Checks that the elements of an output tensor do not share memory. */
    void written(OpType type, String role, TensorInfo tensor) {
        long[] sizes = tensor.sizes();
        long[] strides = tensor.strides();
        for (int i = 0; i < sizes.length; i++) {
            if (sizes[i] > 1 && strides[i] == 0) {
                throw new IllegalArgumentException(
                        String.format(
                                "%s: %s of shape %s cannot be an output: dimension %d is broadcast"
                                    + " (stride 0), so its elements share memory; pass a duplicate",
                                type, role, Arrays.toString(sizes), i));
            }
        }
    }

    void root(OpType type, int root) {
        inGroup(type, "root", root);
    }

    private void inGroup(OpType type, String role, int peer) {
        if (peer < 0 || peer >= worldSize) {
            throw new IllegalArgumentException(
                    String.format(
                            "%s: %s %d is out of range: the group has ranks 0 to %d; translate"
                                    + " global ranks with groupRank()",
                            type, role, peer, worldSize - 1));
        }
    }

    void peer(OpType type, String role, int peer) {
        inGroup(type, role, peer);
        if (peer == rank) {
            throw new IllegalArgumentException(
                    String.format("%s: %s %d is this rank; pass another rank", type, role, peer));
        }
    }

    void anyPeer(OpType type) {
        if (worldSize == 1) {
            throw new IllegalArgumentException(
                    type + ": the group has one rank; a message needs two");
        }
    }

    void tag(OpType type, int tag) {
        if (tag < 0) {
            throw new IllegalArgumentException(type + ": tag must be at least 0, but is " + tag);
        }
    }

    /** Checks a list of one tensor per rank, each of the type and shape of {@code like}. */
    List<TensorInfo> alike(OpType type, String role, List<NDArray> tensors, TensorInfo like) {
        List<TensorInfo> infos = sameTypes(type, role, tensors, like, null);
        for (int peer = 0; peer < worldSize; peer++) {
            sameShape(type, role, infos, peer, like);
        }
        return infos;
    }

    /**
     * Checks a list of one tensor per rank, each of the type of {@code like}; this rank's has also
     * its shape.
     */
    List<TensorInfo> perRank(
            OpType type, String role, List<NDArray> tensors, TensorInfo like, ReduceOp op) {
        List<TensorInfo> infos = sameTypes(type, role, tensors, like, op);
        sameShape(type, role, infos, rank, like);
        return infos;
    }

    private List<TensorInfo> sameTypes(
            OpType type, String role, List<NDArray> tensors, TensorInfo like, ReduceOp op) {
        onePerRank(type, role, tensors);
        List<TensorInfo> infos = new ArrayList<>();
        for (NDArray tensor : tensors) {
            TensorInfo info = tensor(type, role + "[" + infos.size() + "]", tensor, op);
            sameType(type, role, info, like);
            infos.add(info);
        }
        return infos;
    }

    private static void sameShape(
            OpType type, String role, List<TensorInfo> infos, int index, TensorInfo like) {
        long[] sizes = infos.get(index).sizes();
        if (!Arrays.equals(sizes, like.sizes())) {
            throw new IllegalArgumentException(
                    String.format(
                            "%s: %s[%d] must have shape %s, but has %s",
                            type,
                            role,
                            index,
                            Arrays.toString(like.sizes()),
                            Arrays.toString(sizes)));
        }
    }

    /** Returns whether tensors have different shapes. */
    static boolean differInShape(List<TensorInfo> infos) {
        return infos.stream().anyMatch(info -> !Arrays.equals(info.sizes(), infos.get(0).sizes()));
    }

    private void onePerRank(OpType type, String role, List<NDArray> tensors) {
        if (tensors == null || tensors.size() != worldSize) {
            throw new IllegalArgumentException(
                    String.format(
                            "%s: %s must have one tensor for each of the %d ranks, but %s",
                            type,
                            role,
                            worldSize,
                            tensors == null ? "is null" : "has " + tensors.size()));
        }
    }

    /** Checks a list that only the root passes. */
    List<TensorInfo> onRoot(
            OpType type, String role, List<NDArray> tensors, TensorInfo like, int root) {
        if (rank == root) {
            return alike(type, role, tensors, like);
        }
        if (tensors != null && !tensors.isEmpty()) {
            throw new IllegalArgumentException(
                    String.format(
                            "%s: only the root, rank %d, passes %s; pass null on rank %d",
                            type, root, role, rank));
        }
        return List.of();
    }

    /**
     * Checks lists of one tensor per rank, of any shape and one element type. Returns type, shape
     * and address of the first input.
     */
    TensorInfo exchanged(OpType type, List<NDArray> outputs, List<NDArray> inputs) {
        onePerRank(type, "outputs", outputs);
        onePerRank(type, "inputs", inputs);
        List<TensorInfo> out = new ArrayList<>();
        List<TensorInfo> in = new ArrayList<>();
        for (int peer = 0; peer < worldSize; peer++) {
            in.add(moved(type, "inputs", inputs.get(peer)));
            out.add(moved(type, "outputs", outputs.get(peer)));
            written(type, "outputs", out.get(peer));
            sameType(type, "inputs", in.get(peer), in.get(0));
            sameType(type, "outputs", out.get(peer), in.get(0));
        }
        if (in.get(rank).count() != out.get(rank).count()) {
            throw new IllegalArgumentException(
                    String.format(
                            "%s: inputs[%d] has %d elements, but outputs[%d] has %d; a rank's part"
                                    + " for itself must have the same number in both",
                            type, rank, in.get(rank).count(), rank, out.get(rank).count()));
        }
        for (int i = 0; i < worldSize; i++) {
            for (int j = 0; j < worldSize; j++) {
                overlap(type, out.get(i), in.get(j), i == j && i == rank ? 0 : -1);
            }
        }
        return in.get(0);
    }

    /** Checks that a tensor holds one part per rank. */
    void whole(OpType type, String wholeRole, TensorInfo whole, String partRole, TensorInfo part) {
        sameType(type, wholeRole, whole, part);
        if (whole.count() != worldSize * part.count()) {
            throw new IllegalArgumentException(
                    String.format(
                            "%s: %s of shape %s must have %d (the world size) times as many"
                                    + " elements as %s of shape %s",
                            type,
                            wholeRole,
                            Arrays.toString(whole.sizes()),
                            worldSize,
                            partRole,
                            Arrays.toString(part.sizes())));
        }
    }

    /** Returns the number of elements for each rank, from splits of the first dimension. */
    long[] splits(OpType type, String role, TensorInfo tensor, long[] splits) {
        long[] sizes = tensor.sizes();
        if (sizes.length == 0) {
            throw new IllegalArgumentException(
                    type + ": " + role + " is a scalar; it needs a first dimension to split");
        }
        long[] rows = splits;
        if (rows == null) {
            if (sizes[0] % worldSize != 0) {
                throw new IllegalArgumentException(
                        String.format(
                                "%s: the first dimension of %s of shape %s is not divisible by the"
                                        + " world size %d; pass split sizes",
                                type, role, Arrays.toString(sizes), worldSize));
            }
            rows = new long[worldSize];
            Arrays.fill(rows, sizes[0] / worldSize);
        }
        if (rows.length != worldSize
                || Arrays.stream(rows).anyMatch(split -> split < 0 || split > sizes[0])
                || Arrays.stream(rows).sum() != sizes[0]) {
            throw new IllegalArgumentException(
                    String.format(
                            "%s: the splits of %s must be %d non-negative numbers that add up to"
                                    + " the first dimension, %d, but are %s",
                            type, role, worldSize, sizes[0], Arrays.toString(rows)));
        }
        long rowSize = count(Arrays.copyOfRange(sizes, 1, sizes.length));
        return Arrays.stream(rows).map(split -> split * rowSize).toArray();
    }

    /** Returns the shape of a row, on which all ranks must agree in an all-to-all with splits. */
    static long[] rowShape(OpType type, TensorInfo output, TensorInfo input) {
        long[] in = input.sizes();
        long[] row = Arrays.copyOfRange(in, 1, in.length);
        long[] out = output.sizes();
        if (!Arrays.equals(row, Arrays.copyOfRange(out, 1, out.length))) {
            throw new IllegalArgumentException(
                    String.format(
                            "%s: output of shape %s and input of shape %s must have equal"
                                    + " dimensions except the first",
                            type, Arrays.toString(out), Arrays.toString(in)));
        }
        return row;
    }

    void sameType(OpType type, String role, TensorInfo tensor, TensorInfo like) {
        if (tensor.type() != like.type()) {
            throw new IllegalArgumentException(
                    type + ": " + role + " must be " + like.type() + ", but is " + tensor.type());
        }
    }

    /**
     * Checks that an input and an output share no memory, unless the part is this rank's part of
     * the whole, at an offset (place) in elements; -1 if they must not overlap.
     */
    void overlap(OpType type, TensorInfo whole, TensorInfo part, long place) {
        if (!whole.isContiguous() || !part.isContiguous()) {
            return; // Non-contiguous tensors are copied before and after the operation.
        }
        int itemSize = whole.type().itemSize();
        long wholeBegin = whole.address();
        long wholeEnd = wholeBegin + whole.byteSize();
        long partBegin = part.address();
        long partEnd = partBegin + part.byteSize();
        boolean apart = partEnd <= wholeBegin || wholeEnd <= partBegin;
        boolean empty = partBegin == partEnd || wholeBegin == wholeEnd;
        boolean inPlace = place >= 0 && partBegin == wholeBegin + place * itemSize;
        if (!apart && !empty && !inPlace) {
            throw new IllegalArgumentException(
                    type
                            + ": input and output overlap in memory"
                            + (place < 0
                                    ? "; pass separate tensors"
                                    : " but not exactly in this rank's part; pass that part or"
                                            + " separate tensors"));
        }
    }

    /** Checks that contiguous outputs do not overlap. Non-contiguous outputs are not checked. */
    static void apart(OpType type, String role, List<TensorInfo> written) {
        List<TensorInfo> sorted = new ArrayList<>(written);
        sorted.removeIf(info -> info.byteSize() == 0 || !info.isContiguous());
        sorted.sort(Comparator.comparingLong(TensorInfo::address));
        for (int i = 1; i < sorted.size(); i++) {
            TensorInfo one = sorted.get(i - 1);
            TensorInfo next = sorted.get(i);
            if (one.address() + one.byteSize() > next.address()) {
                throw new IllegalArgumentException(
                        String.format(
                                "%s: two of the %s, of shapes %s and %s, overlap in memory; pass"
                                        + " separate tensors",
                                type,
                                role,
                                Arrays.toString(one.sizes()),
                                Arrays.toString(next.sizes())));
            }
        }
    }
}
