// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.spi;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import org.djlx.nativeops.host.Required;

/**
 * The kind of an operation, identified by name. Operations of this library are constants; a library
 * that runs its own operations with {@code ProcessGroup.execute} creates more.
 */
public final class OpType {

    /** The longest name, in characters. */
    public static final int MAX_NAME_LENGTH = 32;

    static final int WORDS = MAX_NAME_LENGTH / Long.BYTES;

    static final OpType INIT = new OpType("init");

    /** See {@code ProcessGroup.allReduce}. */
    public static final OpType ALL_REDUCE = new OpType("allReduce");

    /** See {@code ProcessGroup.reduce}. */
    public static final OpType REDUCE = new OpType("reduce");

    /** See {@code ProcessGroup.broadcast}. */
    public static final OpType BROADCAST = new OpType("broadcast");

    /** See {@code ProcessGroup.allGather}. */
    public static final OpType ALL_GATHER = new OpType("allGather");

    /** See {@code ProcessGroup.allGatherIntoTensor}. */
    public static final OpType ALL_GATHER_INTO_TENSOR = new OpType("allGatherIntoTensor");

    /** See {@code ProcessGroup.gather}. */
    public static final OpType GATHER = new OpType("gather");

    /** See {@code ProcessGroup.scatter}. */
    public static final OpType SCATTER = new OpType("scatter");

    /** See {@code ProcessGroup.reduceScatter}. */
    public static final OpType REDUCE_SCATTER = new OpType("reduceScatter");

    /** See {@code ProcessGroup.reduceScatterTensor}. */
    public static final OpType REDUCE_SCATTER_TENSOR = new OpType("reduceScatterTensor");

    /** See {@code ProcessGroup.allToAll}. */
    public static final OpType ALL_TO_ALL = new OpType("allToAll");

    /** See {@code ProcessGroup.allToAllSingle}. */
    public static final OpType ALL_TO_ALL_SINGLE = new OpType("allToAllSingle");

    /** See {@code ProcessGroup.send}. */
    public static final OpType SEND = new OpType("send");

    /** See {@code ProcessGroup.recv}. */
    public static final OpType RECV = new OpType("recv");

    /** See {@code ProcessGroup.recvAnySource}. */
    public static final OpType RECV_ANY_SOURCE = new OpType("recvAnySource");

    /** See {@code ProcessGroup.barrier}. */
    public static final OpType BARRIER = new OpType("barrier");

    /** See {@code ObjectCollectives.broadcastObject}. */
    public static final OpType BROADCAST_OBJECT = new OpType("broadcastObject");

    /** See {@code ObjectCollectives.gatherObject}. */
    public static final OpType GATHER_OBJECT = new OpType("gatherObject");

    /** See {@code ObjectCollectives.scatterObjectList}. */
    public static final OpType SCATTER_OBJECT_LIST = new OpType("scatterObjectList");

    private static final List<OpType> BUILT_IN =
            List.of(
                    ALL_REDUCE,
                    REDUCE,
                    BROADCAST,
                    ALL_GATHER,
                    ALL_GATHER_INTO_TENSOR,
                    GATHER,
                    SCATTER,
                    REDUCE_SCATTER,
                    REDUCE_SCATTER_TENSOR,
                    ALL_TO_ALL,
                    ALL_TO_ALL_SINGLE,
                    SEND,
                    RECV,
                    RECV_ANY_SOURCE,
                    BARRIER);

    private final String name;
    private final long[] words;

    /**
     * Creates a kind of operation, with a name for messages and traces of 1 to {@value
     * #MAX_NAME_LENGTH} ASCII characters.
     */
    public OpType(String name) {
        byte[] ascii =
                Required.argument("an operation's name", name).getBytes(StandardCharsets.US_ASCII);
        if (ascii.length == 0 || ascii.length > MAX_NAME_LENGTH) {
            throw new IllegalArgumentException(
                    "an operation's name must have 1 to %s characters, but is '%s'"
                            .formatted(MAX_NAME_LENGTH, name));
        }
        this.name = name;
        ByteBuffer padded =
                ByteBuffer.wrap(Arrays.copyOf(ascii, MAX_NAME_LENGTH))
                        .order(ByteOrder.LITTLE_ENDIAN);
        words = new long[WORDS];
        padded.asLongBuffer().get(words);
    }

    /**
     * {@return the operations of {@code ProcessGroup} that backends implement, in the order of the
     * documentation}
     */
    public static List<OpType> builtIn() {
        return BUILT_IN;
    }

    /**
     * {@return whether this is a message between two ranks: {@link #SEND}, {@link #RECV} or {@link
     * #RECV_ANY_SOURCE}} Messages have their own sequence numbers.
     */
    public boolean isPointToPoint() {
        return this == SEND || this == RECV || this == RECV_ANY_SOURCE;
    }

    /** Writes the name as {@value #WORDS} words, for the comparison between ranks. */
    void encode(long[] target) {
        System.arraycopy(words, 0, target, 0, WORDS);
    }

    static String decodeName(long[] source) {
        ByteBuffer bytes = ByteBuffer.allocate(MAX_NAME_LENGTH).order(ByteOrder.LITTLE_ENDIAN);
        bytes.asLongBuffer().put(source, 0, WORDS);
        return new String(bytes.array(), StandardCharsets.US_ASCII).trim();
    }

    /** {@return the name, such as {@code allReduce}} */
    @Override
    public String toString() {
        return name;
    }
}
