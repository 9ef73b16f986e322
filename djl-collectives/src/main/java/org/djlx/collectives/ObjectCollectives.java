/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.io.InvalidObjectException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.stream.IntStream;
import org.djlx.collectives.ProcessGroup.Variant;
import org.djlx.collectives.internal.host.Required;
import org.djlx.collectives.spi.Backend;
import org.djlx.collectives.spi.OpType;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * Collectives on Java objects, on any backend; the counterpart of c10d's {@code all_gather_object},
 * {@code broadcast_object_list}, {@code gather_object} and {@code scatter_object_list}. They are
 * for what is small and rare, such as settings and metrics, and block until the objects are there.
 *
 * <pre>{@code
 * record Settings(double rate, List<String> files) implements Serializable {}
 *
 * ObjectCollectives objects = new ObjectCollectives(group, Settings.class);
 * Settings settings = objects.broadcastObject(group.rank() == 0 ? read() : null, 0);
 * List<Map<String, Double>> metrics = objects.allGatherObject(Map.of("loss", loss));
 * }</pre>
 *
 * <p>Objects go by Java serialisation. What is read is filtered: only the classes given to the
 * constructor, with their superclasses and arrays of them, and the JDK's common values and
 * collections: boxed numbers, strings, arrays, big numbers, dates of {@code java.time}, UUIDs,
 * lists, sets, maps and queues of {@code java.util}. Objects are nested at most {@value
 * ObjectCodec#MAX_DEPTH} deep. What is returned is a copy always, also of a rank's own object; null
 * is an object like others.
 *
 * <p>Ranks first tell each other the sizes. If the object of a rank cannot be serialised, is of a
 * class that is not allowed, or takes more bytes than some rank takes, the call fails on all ranks
 * with a {@link CollectiveException} that names that rank and says why; none of the objects is
 * sent, and the group stays usable. A rank whose own classes differ, so that it cannot read what
 * another has sent, fails alone.
 *
 * <p>All ranks of the group call the same operations in the same order, as they call those of
 * {@link ProcessGroup}, whose timeout bounds each; {@link ProcessGroup#withTimeout} gives a view
 * with another. The objects' types are not compared: a rank that passes another class than the
 * others makes a {@link ClassCastException} where they use it. An instance is as thread-safe as its
 * group.
 */
public final class ObjectCollectives {

    /** How many bytes an object may take, unless told otherwise: 64 MiB. */
    public static final int DEFAULT_MAX_BYTES = 64 << 20;

    private static final OpType ALL_GATHER = new OpType("allGatherObject");
    public static final OpType BROADCAST = new OpType("broadcastObject");
    public static final OpType GATHER = new OpType("gatherObject");
    public static final OpType SCATTER = new OpType("scatterObjectList");

    // What a rank tells of its objects: the bytes of the largest, or -1 and why not; its limit.
    private static final int NOTE_BYTES = 256;
    private static final int REASON = 2 * Integer.BYTES;

    private final ProcessGroup group;
    private final ObjectCodec codec;
    private final int maxBytes;

    /**
     * Creates object collectives of a group.
     *
     * @param group the group; it stays the caller's to destroy
     * @param allowed the classes of which there may be instances in objects, beside the JDK's
     *     common ones; the same on all ranks
     */
    public ObjectCollectives(ProcessGroup group, Class<?>... allowed) {
        this(
                Required.argument("group", group),
                new ObjectCodec(checked(allowed)),
                DEFAULT_MAX_BYTES);
    }

    private ObjectCollectives(ProcessGroup group, ObjectCodec codec, int maxBytes) {
        this.group = group;
        this.codec = codec;
        this.maxBytes = maxBytes;
    }

    private static List<Class<?>> checked(Class<?>... allowed) {
        Required.argument("allowed", allowed);
        for (Class<?> type : allowed) {
            Required.argument("an allowed class", type);
        }
        return List.of(allowed);
    }

    /**
     * Returns the same with another limit. All-gather takes memory for world size times the largest
     * object that there is, on every rank, gather and scatter on the root.
     *
     * @param maxBytes how many bytes an object may take when it is serialised, at least 1; the
     *     smallest limit of all ranks holds
     * @return collectives of the same group and classes
     */
    public ObjectCollectives withMaxBytes(int maxBytes) {
        if (maxBytes < 1) {
            throw new IllegalArgumentException("maxBytes must be at least 1, not " + maxBytes);
        }
        return new ObjectCollectives(group, codec, maxBytes);
    }

    /**
     * Gathers the objects of all ranks on every rank.
     *
     * @param object this rank's object, or null
     * @param <T> what all ranks pass
     * @return the objects, in the order of the group's ranks; cannot be modified
     * @throws CollectiveException if the object of a rank cannot be sent, on all ranks; if it
     *     cannot be read here; if the ranks do not come together
     */
    public <T> List<T> allGatherObject(T object) {
        group.state().checkUsable();
        Packed own = pack(Collections.singletonList(object));
        int size = agree(ALL_GATHER, 0, own);
        try (NDManager manager = manager()) {
            List<NDArray> all = empty(manager, size);
            HostWait.await(group.allGather(all, own.tensor(manager, 0, size)));
            return unpackAll(ALL_GATHER, all);
        }
    }

    /**
     * Sends an object from one rank to all others.
     *
     * @param object on the root, the object, or null; of no meaning elsewhere
     * @param root the rank that sends: a rank of this group, also of a sub-group, while c10d counts
     *     the whole job's
     * @param <T> what the root passes
     * @return the object
     * @throws CollectiveException as {@link #allGatherObject}
     */
    public <T> T broadcastObject(T object, int root) {
        checkRoot(BROADCAST, root);
        boolean sends = group.rank() == root;
        Packed own = sends ? pack(Collections.singletonList(object)) : Packed.NOTHING;
        int size = agree(BROADCAST, root, own);
        try (NDManager manager = manager()) {
            NDArray tensor = sends ? own.tensor(manager, 0, size) : empty(manager, size, 1).get(0);
            HostWait.await(group.broadcast(tensor, root));
            return unpack(BROADCAST, root, tensor);
        }
    }

    /**
     * Gathers the objects of all ranks on one rank.
     *
     * @param object this rank's object, or null
     * @param root the rank that gets them: a rank of this group, also of a sub-group, while c10d
     *     counts the whole job's
     * @param <T> what all ranks pass
     * @return on the root, the objects in the order of the group's ranks; elsewhere, an empty list.
     *     Cannot be modified
     * @throws CollectiveException as {@link #allGatherObject}
     */
    public <T> List<T> gatherObject(T object, int root) {
        checkRoot(GATHER, root);
        Packed own = pack(Collections.singletonList(object));
        int size = agree(GATHER, root, own);
        try (NDManager manager = manager()) {
            boolean receives = group.rank() == root;
            List<NDArray> all = receives ? empty(manager, size, group.worldSize()) : null;
            HostWait.await(group.gather(all, own.tensor(manager, 0, size), root));
            return receives ? unpackAll(GATHER, all) : List.of();
        }
    }

    /**
     * Sends an object from one rank to each rank.
     *
     * @param objects on the root, an object for each rank of the group, null among them or not; of
     *     no meaning elsewhere. A list of another size fails as an object does that cannot be sent
     * @param root the rank that sends: a rank of this group, also of a sub-group, while c10d counts
     *     the whole job's
     * @param <T> what the root passes
     * @return this rank's object
     * @throws CollectiveException as {@link #allGatherObject}
     */
    public <T> T scatterObjectList(List<? extends T> objects, int root) {
        checkRoot(SCATTER, root);
        boolean sends = group.rank() == root;
        Packed own = sends ? packForAll(objects) : Packed.NOTHING;
        int size = agree(SCATTER, root, own);
        try (NDManager manager = manager()) {
            List<NDArray> inputs = null;
            if (sends) {
                inputs =
                        IntStream.range(0, group.worldSize())
                                .mapToObj(rank -> own.tensor(manager, rank, size))
                                .toList();
            }
            NDArray output = empty(manager, size, 1).get(0);
            HostWait.await(group.scatter(output, inputs, root));
            return unpack(SCATTER, root, output);
        }
    }

    private void checkRoot(OpType type, int root) {
        group.state().checkUsable();
        Backend backend = group.state().backend();
        new OperationChecks(backend, group.rank(), group.worldSize()).root(type, root);
    }

    /**
     * What a rank has to send.
     *
     * @param objects the bytes of each object
     * @param failure why there is none, or null
     */
    private record Packed(List<byte[]> objects, Throwable failure) {

        static final Packed NOTHING = new Packed(List.of(), null);

        /** The bytes of an object, and room for those of the largest. */
        NDArray tensor(NDManager manager, int index, int size) {
            return manager.create(Arrays.copyOf(objects.get(index), size));
        }
    }

    /** Whatever goes wrong here, the other ranks are told of it. */
    private Packed pack(List<?> objects) {
        try {
            List<byte[]> packed = new ArrayList<>();
            for (Object object : objects) {
                packed.add(codec.write(object, maxBytes));
            }
            return new Packed(packed, null);
        } catch (Exception | Error e) {
            return new Packed(List.of(), e);
        }
    }

    private Packed packForAll(List<?> objects) {
        if (objects == null || objects.size() != group.worldSize()) {
            return new Packed(
                    List.of(),
                    new InvalidObjectException(
                            String.format(
                                    "the list must have an object for each of the %d ranks; it %s",
                                    group.worldSize(),
                                    objects == null ? "is null" : "has " + objects.size())));
        }
        return pack(objects);
    }

    /**
     * Tells the ranks what each of them is about to send.
     *
     * @return how many bytes the largest object has
     * @throws CollectiveException on all ranks, if there is one that cannot be sent
     */
    private int agree(OpType type, int root, Packed own) {
        ByteBuffer note = ByteBuffer.allocate(NOTE_BYTES);
        note.putInt(own.objects().stream().mapToInt(bytes -> bytes.length).max().orElse(0));
        note.putInt(maxBytes);
        if (own.failure() != null) {
            byte[] reason = reason(own.failure()).getBytes(StandardCharsets.UTF_8);
            note.putInt(0, -1).put(reason, 0, Math.min(reason.length, note.remaining()));
        }
        ByteBuffer notes;
        try (NDManager manager = manager()) {
            Shape shape = new Shape((long) group.worldSize() * NOTE_BYTES);
            NDArray all = Torch.empty(manager, shape, ScalarType.INT8);
            HostWait.await(
                    group.allGatherIntoTensor(
                            new Variant(type, root), all, manager.create(note.array())));
            notes = ByteBuffer.wrap(all.toByteArray());
        }
        return largest(type, notes, own.failure());
    }

    private int largest(OpType type, ByteBuffer notes, Throwable ownFailure) {
        int largest = 0;
        int strictest = 0;
        int limit = Integer.MAX_VALUE;
        List<String> failures = new ArrayList<>();
        for (int rank = 0; rank < group.worldSize(); rank++) {
            int at = rank * NOTE_BYTES;
            int size = notes.getInt(at);
            if (size < 0) {
                failures.add("rank " + rank + ": " + text(notes, at + REASON));
            }
            largest = Math.max(largest, size);
            if (notes.getInt(at + Integer.BYTES) < limit) {
                limit = notes.getInt(at + Integer.BYTES);
                strictest = rank;
            }
        }
        for (int rank = 0; rank < group.worldSize(); rank++) {
            int size = notes.getInt(rank * NOTE_BYTES);
            if (size > limit) {
                failures.add(
                        String.format(
                                "rank %d: it takes %d bytes, of which rank %d takes %d at most; see"
                                        + " withMaxBytes",
                                rank, size, strictest, limit));
            }
        }
        if (!failures.isEmpty()) {
            throw new CollectiveException(
                    String.format(
                            "%s of group '%s' failed on all %d ranks, as an object cannot be sent:"
                                    + " %s",
                            type, group.name(), group.worldSize(), String.join("; ", failures)),
                    ownFailure);
        }
        return largest;
    }

    private static String reason(Throwable failure) {
        try {
            boolean own = failure instanceof InvalidObjectException;
            return String.valueOf(own ? failure.getMessage() : failure);
        } catch (RuntimeException e) {
            return failure.getClass().getName(); // It cannot even say what it is.
        }
    }

    private static String text(ByteBuffer notes, int begin) {
        byte[] bytes = Arrays.copyOfRange(notes.array(), begin, begin + NOTE_BYTES - REASON);
        return new String(bytes, StandardCharsets.UTF_8).trim();
    }

    private NDManager manager() {
        return NDManager.newBaseManager(group.device(), "PyTorch");
    }

    private List<NDArray> empty(NDManager manager, int size) {
        return empty(manager, size, group.worldSize());
    }

    private static List<NDArray> empty(NDManager manager, int size, int count) {
        return IntStream.range(0, count)
                .mapToObj(i -> Torch.empty(manager, new Shape(size), ScalarType.INT8))
                .toList();
    }

    private <T> List<T> unpackAll(OpType type, List<NDArray> tensors) {
        List<T> objects = new ArrayList<>();
        for (int rank = 0; rank < tensors.size(); rank++) {
            objects.add(unpack(type, rank, tensors.get(rank)));
        }
        return Collections.unmodifiableList(objects);
    }

    @SuppressWarnings("unchecked") // What the ranks pass is up to them.
    private <T> T unpack(OpType type, int source, NDArray tensor) {
        try {
            return (T) codec.read(tensor.toByteArray());
        } catch (Exception | LinkageError e) { // A class that another version of misses here.
            throw new CollectiveException(
                    String.format(
                            "%s of group '%s': rank %d cannot read the object of rank %d: %s",
                            type, group.name(), group.rank(), source, e),
                    e);
        }
    }

    @Override
    public String toString() {
        return "ObjectCollectives(" + group + ")";
    }
}
