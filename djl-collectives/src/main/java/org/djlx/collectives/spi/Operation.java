/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.spi;

import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveMismatchException;
import org.djlx.collectives.Lifeline;
import org.djlx.collectives.ObjectCollectives;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.collectives.internal.host.Required;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.TensorInfo;

/**
 * One operation of a group, as issued by one rank: what it is, its number, and the part of its
 * arguments on which all ranks must agree. Point-to-point operations, on which two ranks agree, are
 * numbered for themselves.
 *
 * <p>Whoever executes the operation reports {@link #started} and {@link #ended}, which go to an
 * {@link OperationTrace}. Until then it keeps its group, should nobody else refer to that.
 * Otherwise immutable.
 *
 * <p>A backend publishes {@link #signature()} to the other ranks and compares theirs with it;
 * {@link #describe(long[])} turns a signature back into words. A signature has {@value
 * #SIGNATURE_WORDS} words:
 *
 * <pre>
 *   0 to 3    the name, in ASCII, padded with zeros
 *   4         bits 0-7 element type, 8-15 reduce op + 1, 16-23 dimensions, 24 point-to-point,
 *             32-63 root, dimension or peer
 *   5         the reduce op's factor, or the tag of a point-to-point operation
 *   6 to 15   the shape; with more dimensions than fit, the last word is a hash of the rest
 * </pre>
 */
public final class Operation {

    /** The number of words of a signature. */
    public static final int SIGNATURE_WORDS = 16;

    private static final int HEADER = OpType.WORDS;
    private static final int DETAIL = HEADER + 1;
    private static final int SHAPE = DETAIL + 1;
    private static final int MAX_DIMENSIONS = SIGNATURE_WORDS - SHAPE;
    private static final int NO_TYPE = 0xff;
    private static final long POINT_TO_POINT = 1L << 24;

    /** Operations whose number is that of a rank. */
    private static final Set<String> ROOTED =
            Stream.of(
                            OpType.BROADCAST,
                            OpType.REDUCE,
                            OpType.GATHER,
                            OpType.SCATTER,
                            ObjectCollectives.BROADCAST,
                            ObjectCollectives.GATHER,
                            ObjectCollectives.SCATTER)
                    .map(OpType::toString)
                    .collect(Collectors.toUnmodifiableSet());

    private final OpType type;
    private final long sequence;
    private final String group;
    private final Duration timeout;
    private final Agreed agreed;
    private final long[] signature;
    private final long byteSize;

    // Set when the operation is issued, before anybody else sees it.
    private TensorInfo tensor;
    private OperationTrace trace;
    private Duration warnAfter = BackendOptions.DEFAULT_WARN_AFTER;
    private boolean warned; // guarded by this
    private Lifeline lifeline; // of the group; null when the operation has ended
    private String algorithm;
    private Work before; // of the same call; null if there is none, or this one has ended

    /**
     * Creates an operation.
     *
     * @param type its kind
     * @param sequence its number within the group, from 1
     * @param group the group's name
     * @param timeout how long it may wait for the other ranks
     * @param agreed what all ranks must agree on
     */
    public Operation(OpType type, long sequence, String group, Duration timeout, Agreed agreed) {
        this.type = Required.argument("type", type);
        this.sequence = sequence;
        this.group = group;
        this.timeout = timeout;
        this.agreed = Required.argument("agreed", agreed);
        this.signature = encode(type, agreed);
        this.byteSize = byteSize(agreed);
    }

    /** Creates a point-to-point operation; {@code agreed.index()} is the peer, or -1 for any. */
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
     * @param shape the shape of the tensor that is the same on all ranks, in elements
     * @param op the reduce op, or null if the operation does not reduce
     * @param index the root rank, or the dimension, or 0
     */
    public record Agreed(ScalarType elementType, long[] shape, ReduceOp op, int index) {

        /**
         * Checks that there is a shape.
         *
         * @param elementType the element type, or null
         * @param shape the shape; empty if there is no tensor
         * @param op the reduce op, or null
         * @param index the root rank, or the dimension, or 0
         */
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
        words[DETAIL] = agreed.op() == null ? 0 : Double.doubleToRawLongBits(agreed.op().factor());
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

    /**
     * Returns the kind of operation.
     *
     * @return the kind
     */
    public OpType type() {
        return type;
    }

    /**
     * Returns the operation's number within its group.
     *
     * @return the number, from 1
     */
    public long sequence() {
        return sequence;
    }

    /**
     * Returns the name of the operation's group.
     *
     * @return the name
     */
    public String group() {
        return group;
    }

    /**
     * Returns how long the operation may wait for the other ranks.
     *
     * @return the timeout
     */
    public Duration timeout() {
        return timeout;
    }

    /**
     * Returns the arguments on which all ranks must agree.
     *
     * @return the arguments; the shape is not to be changed
     */
    public Agreed agreed() {
        return agreed;
    }

    /**
     * Returns what all ranks must agree on, the kind included, so that they can compare it.
     *
     * @return {@value #SIGNATURE_WORDS} words, not to be changed
     */
    public long[] signature() {
        return signature;
    }

    /**
     * Returns the size of the tensor whose shape all ranks agree on.
     *
     * @return the size in bytes; 0 if the operation has no tensor
     */
    public long byteSize() {
        return byteSize;
    }

    /**
     * Returns what is known of the tensor whose type and shape all ranks agree on, so that it need
     * not be asked again.
     *
     * @return what is known; null if the operation has no such tensor
     */
    public TensorInfo tensor() {
        return tensor;
    }

    public void setTensor(TensorInfo info) {
        tensor = info;
    }

    /**
     * Names the way in which the operation is done, for traces. To be called by who executes it,
     * before {@link #ended}.
     *
     * @param name a constant such as {@code two-shot}
     */
    public void setAlgorithm(String name) {
        algorithm = name;
    }

    /**
     * Returns the way in which the operation is done.
     *
     * @return the name, or null if there is no choice
     */
    public String algorithm() {
        return algorithm;
    }

    /**
     * Makes this operation one call with the operations before it.
     *
     * @param works the works of the operations before, in their order
     * @return this operation
     */
    public Operation behind(List<Work> works) {
        before = Required.argument("works", works).isEmpty() ? null : works.get(works.size() - 1);
        return this;
    }

    /**
     * Returns why the ranks do not run an operation: a call may be several, one behind the other,
     * and the ranks did not agree on the first. To be called by who executes it, when those before
     * it have ended and before it begins.
     *
     * @return the mismatch; null if there is none
     */
    public CollectiveMismatchException mismatchBefore() {
        Throwable failure = before == null ? null : before.exception().orElse(null);
        return failure instanceof CollectiveMismatchException mismatch ? mismatch : null;
    }

    /** Says what to refer to until the operation has ended. */
    public void setGroup(Lifeline group) {
        lifeline = group;
    }

    /**
     * Keeps the group until it is destroyed, even if nobody refers to it: what this operation has
     * enqueued may run at any time, as from a CUDA graph. To be called by who executes it, before
     * {@link #ended}.
     */
    public void keepGroup() {
        lifeline.keep();
    }

    /** Says after how long a wait the log is to tell of it. */
    public Operation warningAfter(Duration wait) {
        warnAfter = wait;
        return this;
    }

    /**
     * Decides whether the log is to tell now that the operation waits for other ranks: true once,
     * when it has waited for as long as {@link BackendOptions#warnAfter} says. To be called from
     * time to time by who executes it, while it waits; who gets true logs whom it waits for.
     *
     * @param waitedNanos how long it has waited
     * @return whether to log it
     */
    public synchronized boolean takeWarning(long waitedNanos) {
        if (warned || waitedNanos < warnAfter.toNanos()) {
            return false;
        }
        warned = true;
        return true;
    }

    /** Says who is told how the operation goes. */
    public void setTrace(OperationTrace to) {
        trace = to;
    }

    /** Reports that the backend did not take the operation. */
    public void withdrawn() {
        lifeline = null;
        trace.withdrawn();
    }

    /**
     * Reports that the execution begins. To be called by who executes it, once, before it reads any
     * of the operation's tensors.
     */
    public void started() {
        trace.started();
    }

    /**
     * Reports that the operation has ended, whether or not it was started. To be called by who
     * executes it, once, before the {@link Work} completes: then the failure says where the flight
     * record is. It neither waits nor fails, whatever becomes of the report: another thread writes
     * that.
     *
     * @param failure why it failed, or null if it ended well
     */
    public void ended(Throwable failure) {
        lifeline = null;
        before = null;
        String record = trace.ended(failure);
        if (record != null && failure instanceof CollectiveException exception) {
            exception.setFlightRecord(record);
        }
    }

    /** The reduce op in a signature; null if the operation does not reduce. */
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

    /** Tells whether a signature is that of a message between two ranks. */
    private static boolean isPointToPoint(long[] signature) {
        return (signature[HEADER] & POINT_TO_POINT) != 0;
    }

    /**
     * Puts a signature into words.
     *
     * @param signature a signature, of this rank or another
     * @return a text such as {@code allReduce(float32, (2, 3), SUM)}
     */
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
            return text.append(", tag ").append(signature[DETAIL]).append(')').toString();
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
     * Returns the operation in words.
     *
     * @return a text such as {@code allReduce(float32, (2, 3), SUM) #17 of group 'default'}
     */
    @Override
    public String toString() {
        String number = type.isPointToPoint() ? " message #" : " #";
        return describe(signature) + number + sequence + " of group '" + group + "'";
    }
}
