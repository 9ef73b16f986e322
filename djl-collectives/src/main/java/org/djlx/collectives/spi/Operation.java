// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.spi;

import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveMismatchException;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.nativeops.host.Required;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.TensorInfo;

/**
 * One operation of a group, as issued by one rank: its kind, its sequence number, and the arguments
 * on which all ranks must agree. Point-to-point operations, on which two ranks agree, have their
 * own sequence numbers.
 *
 * <p>The backend must report {@link #started} and {@link #ended}; both are passed to an {@link
 * OperationTrace}. The operation keeps its group reachable until it has ended. Otherwise it is
 * immutable.
 *
 * <p>A backend publishes {@link #signature()} to the other ranks and compares it with their
 * signatures. {@link #describe(long[])} formats a signature. A signature has {@value
 * #SIGNATURE_WORDS} words:
 *
 * <pre>
 *   0 to 3    the name, in ASCII, padded with zeros
 *   4         bits 0-7 element type, 8-15 reduce op + 1, 16-23 dimensions, 24 point-to-point,
 *             32-63 root, dimension or peer
 *   5         the factor of PREMUL_SUM, or the tag of a point-to-point operation
 *   6 to 15   the shape; with more dimensions than fit, the last word is a hash of the rest
 * </pre>
 */
public final class Operation {

    /** The number of words of a signature. */
    public static final int SIGNATURE_WORDS = 16;

    /** The tag of messages with lists of objects; monitoredBarrier has the other negative tags. */
    public static final int OBJECT_LIST_TAG = Integer.MIN_VALUE;

    private static final int HEADER = OpType.WORDS;
    private static final int DETAIL = HEADER + 1;
    private static final int SHAPE = DETAIL + 1;
    private static final int MAX_DIMENSIONS = SIGNATURE_WORDS - SHAPE;
    private static final int NO_TYPE = 0xff;
    private static final long POINT_TO_POINT = 1L << 24;

    /** Operations with a root rank, in {@link Agreed#index}. */
    private static final Set<String> ROOTED =
            Stream.of(
                            OpType.BROADCAST,
                            OpType.REDUCE,
                            OpType.GATHER,
                            OpType.SCATTER,
                            OpType.BROADCAST_OBJECT,
                            OpType.GATHER_OBJECT,
                            OpType.SCATTER_OBJECT_LIST)
                    .map(OpType::toString)
                    .collect(Collectors.toUnmodifiableSet());

    private final OpType type;
    private final long sequence;
    private final String group;
    private final Duration timeout;
    private final Agreed agreed;
    private final long[] signature;
    private final long byteSize;

    // Set when the operation is issued, before another thread sees it.
    private TensorInfo tensor;
    private TensorInfo whole;
    private OperationTrace trace;
    private Duration warnAfter = BackendOptions.DEFAULT_WARN_AFTER;
    private String hint = ""; // to append to the warning
    private boolean warned; // guarded by this
    private boolean announced; // used by the calling thread only
    private Runnable keeper; // keeps the group reachable; null once the operation has ended
    private String algorithm;
    private boolean inOrder;
    private boolean forCopyEngines;
    private long place = -1;
    private volatile long startNanos; // System.nanoTime; 0 before the start
    private volatile long endNanos; // 0 before the end
    private Work before; // the previous operation of the same call; null if none or ended

    /** Creates an operation with its sequence number within the group, from 1. */
    public Operation(OpType type, long sequence, String group, Duration timeout, Agreed agreed) {
        this.type = Required.argument("Operation: type", type);
        this.sequence = sequence;
        this.group = group;
        this.timeout = timeout;
        this.agreed = Required.argument("Operation: agreed", agreed);
        this.signature = encode(type, agreed);
        this.byteSize = byteSize(agreed);
    }

    /**
     * Creates a point-to-point operation with its sequence number among the messages of the group,
     * from 1; {@link Agreed#index} is the peer, or -1 for any source.
     */
    public Operation(
            OpType type, long sequence, String group, Duration timeout, Agreed agreed, int tag) {
        this(type, sequence, group, timeout, agreed);
        signature[HEADER] |= POINT_TO_POINT;
        signature[DETAIL] = tag;
    }

    /**
     * The arguments of an operation on which all ranks must agree.
     *
     * @param elementType the element type, or null if the operation has no tensor
     * @param shape the shape that must be the same on all ranks
     * @param op the reduction, or null if the operation does not reduce
     * @param index the root rank, or the dimension, or 0
     */
    public record Agreed(ScalarType elementType, long[] shape, ReduceOp op, int index) {

        /** Checks that the shape is not null; it is empty if there is no tensor. */
        public Agreed {
            Required.argument("Agreed: shape", shape);
        }
    }

    private static long[] encode(OpType type, Agreed agreed) {
        long[] words = new long[SIGNATURE_WORDS];
        type.encode(words);
        long[] shape = agreed.shape();
        int reduce = agreed.op() == null ? 0 : agreed.op().kind().ordinal() + 1;
        int element = agreed.elementType() == null ? NO_TYPE : agreed.elementType().code();
        words[HEADER] =
                element
                        | (long) reduce << 8
                        | (long) Math.min(shape.length, 0xff) << 16
                        | (long) agreed.index() << 32;
        boolean hasFactor = agreed.op() != null && agreed.op().kind() == ReduceOp.Kind.PREMUL_SUM;
        words[DETAIL] = hasFactor ? Double.doubleToRawLongBits(agreed.op().factor()) : 0;
        if (shape.length <= MAX_DIMENSIONS) {
            System.arraycopy(shape, 0, words, SHAPE, shape.length);
        } else {
            System.arraycopy(shape, 0, words, SHAPE, MAX_DIMENSIONS - 1);
            words[SIGNATURE_WORDS - 1] =
                    Arrays.hashCode(Arrays.copyOfRange(shape, MAX_DIMENSIONS - 1, shape.length));
        }
        return words;
    }

    private static long byteSize(Agreed agreed) {
        if (agreed.elementType() == null) {
            return 0;
        }
        long size = agreed.elementType().itemSize();
        for (long length : agreed.shape()) {
            size *= length;
        }
        return size;
    }

    /** {@return the kind of operation} */
    public OpType type() {
        return type;
    }

    /** {@return the operation's sequence number within its group, from 1} */
    public long sequence() {
        return sequence;
    }

    /** {@return the name of the operation's group} */
    public String group() {
        return group;
    }

    /** {@return how long the operation may wait for the other ranks} */
    public Duration timeout() {
        return timeout;
    }

    /** {@return the arguments on which all ranks must agree; do not modify the shape} */
    public Agreed agreed() {
        return agreed;
    }

    /**
     * {@return the kind and the agreed arguments as {@value #SIGNATURE_WORDS} words, for the
     * comparison between ranks; do not modify}
     */
    public long[] signature() {
        return signature;
    }

    /**
     * {@return the size in bytes of the tensor that must have the same shape on all ranks; 0 if the
     * operation has no tensor}
     */
    public long byteSize() {
        return byteSize;
    }

    /**
     * {@return the type, shape and address of the tensor that must have the same type and shape on
     * all ranks; null if the operation has no such tensor} Saves the backend a query of the tensor.
     */
    public TensorInfo tensor() {
        return tensor;
    }

    /** Sets the result of {@link #tensor}. For {@link org.djlx.collectives.ProcessGroup}. */
    public void setTensor(TensorInfo info) {
        tensor = info;
    }

    /**
     * {@return the type, shape and address of the one tensor that has a part for each rank: the
     * output of an all-gather or the input of a reduce-scatter; null if each part is a tensor}
     */
    public TensorInfo whole() {
        return whole;
    }

    /** Sets the result of {@link #whole}. For {@link org.djlx.collectives.ProcessGroup}. */
    public void setWhole(TensorInfo info) {
        whole = info;
    }

    /**
     * Tells that the caller's current stream waits for the work immediately. For {@link
     * org.djlx.collectives.ProcessGroup}.
     */
    public void setInOrder() {
        inOrder = true;
    }

    /**
     * {@return whether the caller lets its current stream wait for the work immediately} The
     * backend may then run the operation on that stream. May differ between ranks.
     */
    public boolean isInOrder() {
        return inOrder;
    }

    /**
     * Sets whether copy engines should move the data. For {@link
     * org.djlx.collectives.ProcessGroup}.
     */
    public void setForCopyEngines(boolean copied) {
        forCopyEngines = copied;
    }

    /** {@return whether copy engines should move the data; the same on all ranks} */
    public boolean isForCopyEngines() {
        return forCopyEngines;
    }

    /** Sets the result of {@link #place}. For {@link org.djlx.collectives.ProcessGroup}. */
    public void setPlace(long offset) {
        place = offset;
    }

    /**
     * {@return the offset of the output in the P2P heaps of all ranks, in bytes; -1 if it lies
     * elsewhere}
     */
    public long place() {
        return place;
    }

    /**
     * Sets the algorithm that runs the operation, for traces: a constant such as {@code two-shot}.
     * Backends call this before {@link #ended}.
     */
    public void setAlgorithm(String name) {
        algorithm = name;
    }

    /** {@return the algorithm that runs the operation; null if it is not set} */
    public String algorithm() {
        return algorithm;
    }

    /** Makes this operation follow the other operations of the same coalesced call. */
    public Operation after(List<Work> works) {
        before =
                Required.argument("after: works", works).isEmpty()
                        ? null
                        : works.get(works.size() - 1);
        return this;
    }

    /**
     * {@return the mismatch of an earlier operation of the same coalesced call; null if there is
     * none} Ranks with such a mismatch must not run this operation. Backends call this method after
     * the earlier operations have ended, and before this operation starts.
     */
    public CollectiveMismatchException mismatchBefore() {
        Throwable failure = before == null ? null : before.exception().orElse(null);
        return failure instanceof CollectiveMismatchException mismatch ? mismatch : null;
    }

    /**
     * Sets a keeper, run by {@link #keepGroup}, which keeps the group reachable until the operation
     * has ended. For {@link org.djlx.collectives.ProcessGroup}.
     */
    public void setKeeper(Runnable keeper) {
        this.keeper = keeper;
    }

    /**
     * Keeps the group until it is destroyed, even if it becomes unreachable. For work that may run
     * at any later time, such as a CUDA graph. Backends call this before {@link #ended}.
     */
    public void keepGroup() {
        keeper.run();
    }

    /** Sets the time after which the log warns of a wait, see {@link BackendOptions#warnAfter}. */
    public Operation warningAfter(Duration wait) {
        warnAfter = wait;
        return this;
    }

    /** Sets an earlier time after which the log warns, and a remedy to append to the warning. */
    public void warningAfter(Duration wait, String hint) {
        if (Required.argument("warningAfter: wait", wait).compareTo(warnAfter) < 0) {
            warnAfter = wait;
            this.hint = Required.argument("warningAfter: hint", hint);
        }
    }

    /** {@return the remedy to append to the warning, or an empty text} */
    public String hint() {
        return hint;
    }

    /**
     * Returns true once, when the operation has waited for {@link BackendOptions#warnAfter}. A
     * backend polls this method while it waits for other ranks, and logs the missing ranks on true.
     *
     * @return true if the backend must log the wait now
     */
    public synchronized boolean takeWarning(long waitedNanos) {
        if (warned || waitedNanos < warnAfter.toNanos()) {
            return false;
        }
        warned = true;
        return true;
    }

    /** Sets the receiver of events. For {@link org.djlx.collectives.ProcessGroup}. */
    public void setTrace(OperationTrace to) {
        trace = to;
    }

    /**
     * Reports that other ranks may have seen this call: its sequence number is used, even if the
     * backend throws later in the call. Backends that publish calls report this before they enqueue
     * work.
     */
    public void announced() {
        announced = true;
    }

    /** {@return whether other ranks may have seen this call: true after {@link #announced}} */
    public boolean isAnnounced() {
        return announced;
    }

    /** Reports that the backend rejected the operation. */
    public void withdrawn() {
        keeper = null;
        trace.withdrawn();
    }

    /**
     * Reports that the operation starts to run. Backends call this once, before they read a tensor.
     */
    public void started() {
        startNanos = System.nanoTime();
        trace.started();
    }

    /**
     * Reports that the operation has ended, whether or not it was started, with its failure or
     * null. Backends call this once, before the {@link Work} completes, so that the exception
     * contains the path of the flight record. This never blocks or throws; another thread writes
     * the record.
     */
    public void ended(Throwable failure) {
        endNanos = System.nanoTime();
        keeper = null;
        before = null;
        String record = trace.ended(failure);
        if (record != null && failure instanceof CollectiveException exception) {
            exception.setFlightRecord(record);
        }
    }

    /** {@return the time from {@link #started} to {@link #ended}; empty until then} */
    public Optional<Duration> duration() {
        long start = startNanos;
        long end = endNanos;
        return start == 0 || end == 0
                ? Optional.empty()
                : Optional.of(Duration.ofNanos(end - start));
    }

    /** Returns the reduction in a signature; null if the operation does not reduce. */
    private static ReduceOp reduceOp(long[] signature) {
        int code = (int) (signature[HEADER] >> 8 & 0xff);
        if (code == 0) {
            return null;
        }
        ReduceOp.Kind kind = ReduceOp.Kind.values()[code - 1];
        return kind == ReduceOp.Kind.PREMUL_SUM
                ? ReduceOp.premulSum(Double.longBitsToDouble(signature[DETAIL]))
                : ReduceOp.constants().get(kind.ordinal());
    }

    /** Returns whether a signature belongs to a message between two ranks. */
    private static boolean isPointToPoint(long[] signature) {
        return (signature[HEADER] & POINT_TO_POINT) != 0;
    }

    /** Formats a signature, for example as {@code allReduce(float32, (2, 3), SUM)}. */
    public static String describe(long[] signature) {
        String name = OpType.decodeName(Required.argument("describe: signature", signature));
        long header = signature[HEADER];
        int element = (int) (header & 0xff);
        int reduce = (int) (header >> 8 & 0xff);
        int dimensions = (int) (header >> 16 & 0xff);
        int index = (int) (header >> 32);
        if (element == NO_TYPE) {
            return name + "()";
        }
        StringBuilder text = new StringBuilder(name).append('(');
        text.append(ScalarType.fromCode(element).name().toLowerCase()).append(", (");
        for (int i = 0; i < Math.min(dimensions, MAX_DIMENSIONS); i++) {
            boolean hashed = dimensions > MAX_DIMENSIONS && i == MAX_DIMENSIONS - 1;
            text.append(i == 0 ? "" : ", ").append(hashed ? "…" : signature[SHAPE + i]);
        }
        text.append(')');
        if (isPointToPoint(signature)) {
            text.append(index < 0 ? "" : ", rank " + index);
            long tag = signature[DETAIL];
            if (tag == OBJECT_LIST_TAG) {
                text.append(", of an object list");
            } else {
                text.append(tag < 0 ? ", of monitoredBarrier" : ", tag " + tag);
            }
            return text.append(')').toString();
        }
        if (reduce > 0) {
            text.append(", ").append(reduceOp(signature));
        }
        if (ROOTED.contains(name)) {
            text.append(", root ").append(index);
        } else if (index != 0) {
            text.append(", ").append(index);
        }
        return text.append(')').toString();
    }

    /**
     * {@return the operation as text, such as {@code allReduce(float32, (2, 3), SUM) #17 of group
     * 'default'}}
     */
    @Override
    public String toString() {
        String number = type.isPointToPoint() ? " message #" : " #";
        return describe(signature) + number + sequence + " of group '" + group + "'";
    }
}
