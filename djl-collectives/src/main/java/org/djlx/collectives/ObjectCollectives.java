// SPDX-License-Identifier: Apache-2.0
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
import org.djlx.collectives.internal.group.HostWait;
import org.djlx.collectives.internal.group.ObjectCodec;
import org.djlx.collectives.internal.group.RankGroup;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation;
import org.djlx.nativeops.host.FailureText;
import org.djlx.nativeops.host.Required;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * Collectives on Java objects, on any backend; the counterpart of c10d's {@code all_gather_object},
 * {@code broadcast_object_list}, {@code gather_object}, {@code scatter_object_list}, {@code
 * send_object_list} and {@code recv_object_list}. For small, infrequent objects such as settings
 * and metrics. All methods block until the objects have arrived.
 *
 * <pre>{@code
 * record Settings(double rate, List<String> files) implements Serializable {}
 *
 * ObjectCollectives objects = new ObjectCollectives(group, Settings.class);
 * Settings settings = objects.broadcastObject(group.rank() == 0 ? read() : null, 0);
 * List<Map<String, Double>> metrics = objects.allGatherObject(Map.of("loss", loss));
 * }</pre>
 *
 * <p>Serialisation:
 *
 * <ul>
 *   <li>Objects are sent by Java serialisation. Null is a valid object.
 *   <li>A filter accepts only the classes given to the constructor, their superclasses and arrays,
 *       and common JDK classes: boxed numbers, strings, arrays, big numbers, {@code java.time},
 *       UUIDs, and lists, sets, maps and queues of {@code java.util}.
 *   <li>Objects may be nested {@value ObjectCodec#MAX_DEPTH} levels deep. Sets and map keys that
 *       refer to the same objects many times are refused if reading them would take long.
 *   <li>A {@code writeObject} method of a class with serialisable fields must call {@code
 *       defaultWriteObject} or {@code writeFields}, as the protocol requires.
 *   <li>Results are always copies, also of a rank's own object.
 * </ul>
 *
 * <p>Calls and errors:
 *
 * <ul>
 *   <li>All ranks of the group call the same operations in the same order, as for {@link
 *       ProcessGroup}. The group's timeout bounds each operation; {@link ProcessGroup#withTimeout}
 *       gives a view with another timeout.
 *   <li>The ranks first exchange sizes. If a rank's object cannot be serialised, has a class that
 *       is not allowed, or exceeds the {@linkplain #withMaxBytes limit} of a rank, the call fails
 *       on all ranks with a {@link CollectiveException} that names the rank and the reason. No
 *       object is sent, and the group stays usable.
 *   <li>If a rank has another version of a class and cannot read a received object, only this rank
 *       fails.
 *   <li>Object types are not compared. If a rank passes an object of another class, the result is a
 *       {@link ClassCastException} where the object is used.
 *   <li>An instance is as thread-safe as its group.
 * </ul>
 */
public final class ObjectCollectives {

    /** The default limit of the serialised size of an object: 64 MiB. */
    public static final int DEFAULT_MAX_BYTES = 64 << 20;

    private static final OpType ALL_GATHER_OBJECT = new OpType("allGatherObject");

    // A rank's header: int size of its largest object, or -1 on failure; int limit; failure reason.
    private static final int HEADER_BYTES = 256;
    private static final int REASON = 2 * Integer.BYTES;

    private final RankGroup group;
    private final ObjectCodec codec;
    private final int maxBytes;

    /**
     * Creates object collectives on a group.
     *
     * @param group the group; the caller still owns and destroys it
     * @param allowed the classes that objects may contain in addition to common JDK classes; the
     *     same on all ranks
     */
    public ObjectCollectives(ProcessGroup group, Class<?>... allowed) {
        this(
                (RankGroup) Required.argument("group", group),
                new ObjectCodec(checked(allowed)),
                DEFAULT_MAX_BYTES);
    }

    private ObjectCollectives(RankGroup group, ObjectCodec codec, int maxBytes) {
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
     * Returns object collectives with another size limit. All-gather allocates world size times the
     * largest object on every rank; gather and scatter do so on the root.
     *
     * @param maxBytes the maximum serialised size of an object in bytes, at least 1; the smallest
     *     limit of all ranks applies
     */
    public ObjectCollectives withMaxBytes(int maxBytes) {
        if (maxBytes < 1) {
            throw new IllegalArgumentException("maxBytes must be at least 1, but is " + maxBytes);
        }
        return new ObjectCollectives(group, codec, maxBytes);
    }

    /**
     * Gathers the objects of all ranks on every rank.
     *
     * @param object this rank's object, or null
     * @return the objects, in rank order; unmodifiable
     * @throws CollectiveException on all ranks, if a rank's object cannot be sent; on this rank, if
     *     this rank cannot read an object; if not all ranks call in time
     */
    public <T> List<T> allGatherObject(T object) {
        group.checkUsable();
        Packed own = pack(Collections.singletonList(object));
        int size = agree(ALL_GATHER_OBJECT, 0, own);
        try (NDManager manager = manager()) {
            List<NDArray> all = empty(manager, size);
            HostWait.await(group, group.allGather(all, own.tensor(manager, 0, size)));
            return unpackAll(ALL_GATHER_OBJECT, all);
        }
    }

    /**
     * Sends an object from one rank to all other ranks.
     *
     * @param object on the root, the object or null; ignored on other ranks
     * @throws CollectiveException as {@link #allGatherObject}
     */
    public <T> T broadcastObject(T object, int root) {
        checkRoot(OpType.BROADCAST_OBJECT, root);
        boolean sends = group.rank() == root;
        Packed own = sends ? pack(Collections.singletonList(object)) : Packed.NOTHING;
        int size = agree(OpType.BROADCAST_OBJECT, root, own);
        try (NDManager manager = manager()) {
            NDArray tensor = sends ? own.tensor(manager, 0, size) : empty(manager, size, 1).get(0);
            HostWait.await(group, group.broadcast(tensor, root));
            return unpack(OpType.BROADCAST_OBJECT, root, tensor);
        }
    }

    /**
     * Gathers the objects of all ranks on one rank.
     *
     * @param object this rank's object, or null
     * @return on the root, the objects in rank order; on other ranks, an empty list; unmodifiable
     * @throws CollectiveException as {@link #allGatherObject}
     */
    public <T> List<T> gatherObject(T object, int root) {
        checkRoot(OpType.GATHER_OBJECT, root);
        Packed own = pack(Collections.singletonList(object));
        int size = agree(OpType.GATHER_OBJECT, root, own);
        try (NDManager manager = manager()) {
            boolean receives = group.rank() == root;
            List<NDArray> all = receives ? empty(manager, size, group.worldSize()) : null;
            HostWait.await(group, group.gather(all, own.tensor(manager, 0, size), root));
            return receives ? unpackAll(OpType.GATHER_OBJECT, all) : List.of();
        }
    }

    /**
     * Distributes a list of objects from one rank, one object to each rank.
     *
     * @param objects on the root, one object or null per rank, in rank order; ignored on other
     *     ranks. A list of another size fails on all ranks
     * @throws CollectiveException as {@link #allGatherObject}
     */
    public <T> T scatterObjectList(List<? extends T> objects, int root) {
        checkRoot(OpType.SCATTER_OBJECT_LIST, root);
        boolean sends = group.rank() == root;
        Packed own = sends ? packForAll(objects) : Packed.NOTHING;
        int size = agree(OpType.SCATTER_OBJECT_LIST, root, own);
        try (NDManager manager = manager()) {
            List<NDArray> inputs = null;
            if (sends) {
                inputs =
                        IntStream.range(0, group.worldSize())
                                .mapToObj(rank -> own.tensor(manager, rank, size))
                                .toList();
            }
            NDArray output = empty(manager, size, 1).get(0);
            HostWait.await(group, group.scatter(output, inputs, root));
            return unpack(OpType.SCATTER_OBJECT_LIST, root, output);
        }
    }

    /**
     * Sends a list of objects to one rank, which calls {@link #recvObjectList}. Returns when the
     * objects have been sent. If they cannot be sent or received, both calls throw and no object is
     * sent.
     *
     * @param objects the objects; may contain null
     * @param destination a rank of the group, not this one
     * @throws CollectiveException if an object cannot be sent, the list exceeds the limit of a
     *     rank, or the other rank does not call in time
     */
    public void sendObjectList(List<?> objects, int destination) {
        group.checkPeer(OpType.SEND, "destination", destination);
        Packed own =
                pack(
                        List.of(
                                new ArrayList<>(
                                        Required.argument("sendObjectList: objects", objects))));
        try (NDManager manager = manager()) {
            message(OpType.SEND, manager.create(header(own).array()), destination);
            NDArray answer = empty(manager, HEADER_BYTES, 1).get(0);
            message(OpType.RECV, answer, destination);
            checkMessage("sendObjectList to", destination, answer, own.failure());
            message(OpType.SEND, manager.create(own.objects().get(0)), destination);
        }
    }

    /**
     * Receives a list of objects from a rank that calls {@link #sendObjectList}.
     *
     * @param source a rank of the group, not this one
     * @return the objects; unmodifiable
     * @throws CollectiveException as {@link #sendObjectList}, or if this rank cannot read an object
     */
    public List<Object> recvObjectList(int source) {
        group.checkPeer(OpType.RECV, "source", source);
        try (NDManager manager = manager()) {
            NDArray offer = empty(manager, HEADER_BYTES, 1).get(0);
            message(OpType.RECV, offer, source);
            ByteBuffer header = ByteBuffer.wrap(offer.toByteArray());
            int size = header.getInt(0);
            if (size > maxBytes) {
                String tooLarge =
                        "the list has %d bytes, but rank %d accepts at most %d; raise it with"
                                + " withMaxBytes";
                String reason = String.format(tooLarge, size, group.rank(), maxBytes);
                header = header(new Packed(List.of(), new InvalidObjectException(reason)));
            }
            NDArray answer = manager.create(header.array());
            message(OpType.SEND, answer, source);
            checkMessage("recvObjectList from", source, answer, null);
            NDArray bytes = empty(manager, size, 1).get(0);
            message(OpType.RECV, bytes, source);
            return Collections.unmodifiableList(unpack(OpType.RECV, source, bytes));
        }
    }

    private void message(OpType type, NDArray tensor, int peer) {
        HostWait.await(group, group.issueMessage(type, tensor, peer, Operation.OBJECT_LIST_TAG));
    }

    private void checkMessage(String call, int peer, NDArray answer, Throwable ownFailure) {
        ByteBuffer header = ByteBuffer.wrap(answer.toByteArray());
        if (header.getInt(0) < 0) {
            throw new CollectiveException(
                    String.format(
                            "%s rank %d of group '%s' failed on both ranks: %s",
                            call, peer, group.name(), text(header, REASON)),
                    ownFailure);
        }
    }

    private void checkRoot(OpType type, int root) {
        group.checkRoot(type, root);
    }

    /**
     * The serialised objects that a rank sends, or why serialisation failed; otherwise the failure
     * is null.
     */
    private record Packed(List<byte[]> objects, Throwable failure) {

        static final Packed NOTHING = new Packed(List.of(), null);

        /** Returns the bytes of an object, padded to the size of the largest object. */
        NDArray tensor(NDManager manager, int index, int size) {
            return manager.create(Arrays.copyOf(objects.get(index), size));
        }
    }

    /** Serialises objects. Any failure is kept and sent to the other ranks. */
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
                                    "the list must have one object for each of the %d ranks, but"
                                            + " %s",
                                    group.worldSize(),
                                    objects == null ? "is null" : "has " + objects.size())));
        }
        return pack(objects);
    }

    /**
     * Exchanges the sizes of the objects; returns that of the largest in bytes. Throws a
     * CollectiveException on all ranks if an object cannot be sent.
     */
    private int agree(OpType type, int root, Packed own) {
        ByteBuffer header = header(own);
        ByteBuffer headers;
        try (NDManager manager = manager()) {
            Shape shape = new Shape((long) group.worldSize() * HEADER_BYTES);
            NDArray all = Torch.empty(manager, shape, ScalarType.INT8);
            HostWait.await(
                    group,
                    group.allGatherIntoTensor(type, root, all, manager.create(header.array())));
            headers = ByteBuffer.wrap(all.toByteArray());
        }
        return largest(type, headers, own.failure());
    }

    private ByteBuffer header(Packed own) {
        ByteBuffer header = ByteBuffer.allocate(HEADER_BYTES);
        header.putInt(own.objects().stream().mapToInt(bytes -> bytes.length).max().orElse(0));
        header.putInt(maxBytes);
        if (own.failure() != null) {
            byte[] reason = reason(own.failure()).getBytes(StandardCharsets.UTF_8);
            header.putInt(0, -1).put(reason, 0, Math.min(reason.length, header.remaining()));
        }
        return header;
    }

    private int largest(OpType type, ByteBuffer headers, Throwable ownFailure) {
        int largest = 0;
        int strictest = 0;
        int limit = Integer.MAX_VALUE;
        List<String> failures = new ArrayList<>();
        for (int rank = 0; rank < group.worldSize(); rank++) {
            int at = rank * HEADER_BYTES;
            int size = headers.getInt(at);
            if (size < 0) {
                failures.add("rank " + rank + ": " + text(headers, at + REASON));
            }
            largest = Math.max(largest, size);
            if (headers.getInt(at + Integer.BYTES) < limit) {
                limit = headers.getInt(at + Integer.BYTES);
                strictest = rank;
            }
        }
        for (int rank = 0; rank < group.worldSize(); rank++) {
            int size = headers.getInt(rank * HEADER_BYTES);
            if (size > limit) {
                failures.add(
                        String.format(
                                "rank %d: the object has %d bytes, but rank %d accepts at most %d;"
                                        + " raise it with withMaxBytes",
                                rank, size, strictest, limit));
            }
        }
        if (!failures.isEmpty()) {
            throw new CollectiveException(
                    String.format(
                            "%s of group '%s' failed on all %d ranks because an object cannot be"
                                    + " sent: %s",
                            type, group.name(), group.worldSize(), String.join("; ", failures)),
                    ownFailure);
        }
        return largest;
    }

    private static String reason(Throwable failure) {
        boolean own = failure instanceof InvalidObjectException;
        return own ? FailureText.message(failure) : FailureText.of(failure);
    }

    private static String text(ByteBuffer headers, int begin) {
        byte[] bytes = Arrays.copyOfRange(headers.array(), begin, begin + HEADER_BYTES - REASON);
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

    @SuppressWarnings("unchecked") // Object types are not compared, see the class comment.
    private <T> T unpack(OpType type, int source, NDArray tensor) {
        try {
            return (T) codec.read(tensor.toByteArray());
        } catch (Exception | LinkageError e) { // LinkageError: a class of another version.
            throw new CollectiveException(
                    String.format(
                            "%s of group '%s': rank %d cannot read the object of rank %d: %s",
                            type, group.name(), group.rank(), source, FailureText.of(e)),
                    e);
        }
    }

    @Override
    public String toString() {
        return "ObjectCollectives(" + group + ")";
    }
}
