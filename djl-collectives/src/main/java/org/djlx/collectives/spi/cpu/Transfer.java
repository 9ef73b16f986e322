// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.spi.cpu;

import ai.djl.ndarray.NDArray;
import java.util.List;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.internal.host.GroupErrors;
import org.djlx.collectives.spi.Operation;

/**
 * One end of a running message: its send or its receive. A {@link MessageChannel} moves its bytes.
 */
// Mutable state is guarded by the MessageQueue.
public final class Transfer extends PendingWork {

    /** The peer of a receive from any rank, until it is matched. */
    static final int ANY = -1;

    private final MessageQueue queue;
    private final HostTensor tensor;
    private final boolean sends;
    private final int tag;
    private final long begin = System.nanoTime();
    private volatile int peer;
    private long message = -1; // the sender's number; -1 until known
    private long arrival; // of a waiting receive: position in the order of arrival
    private long moved; // bytes
    private boolean ended;
    private CollectiveException reason; // the failure after the end; null on success

    /**
     * Creates the send of a tensor that is read, or else its receive; {@code peer} is {@link #ANY}
     * to receive from any rank.
     */
    Transfer(
            MessageQueue queue,
            Operation operation,
            HostTensor tensor,
            int peer,
            int tag,
            List<NDArray> result) {
        super(operation, result);
        this.queue = queue;
        this.tensor = tensor;
        this.sends = tensor.isRead();
        this.peer = peer;
        this.tag = tag;
    }

    /** {@return whether this is the send} */
    public boolean sends() {
        return sends;
    }

    int peer() {
        return peer;
    }

    int tag() {
        return tag;
    }

    /** {@return the number of the message, counted by its sender} */
    public long message() {
        return message;
    }

    long arrival() {
        return arrival;
    }

    void setArrival(long arrival) {
        this.arrival = arrival;
    }

    /** Returns whether the message's number is known. */
    boolean isBound() {
        return message >= 0;
    }

    /** Sets the message's number, and for a receive its source. */
    void bind(int source, long number) {
        this.peer = sends ? peer : source;
        this.message = number;
    }

    Letter letter(Letter.Kind kind) {
        return letter(kind, message);
    }

    Letter letter(Letter.Kind kind, long number) {
        return new Letter(
                kind,
                number,
                tag,
                tensor.type().code(),
                tensor.byteSize(),
                operation().signature());
    }

    boolean fits(Letter other) {
        return tensor.type().code() == other.type() && tensor.byteSize() == other.size();
    }

    /** {@return the address of the bytes that have not moved} */
    public long address() {
        return tensor.address() + moved;
    }

    /** {@return how many bytes have not moved} */
    public long remaining() {
        return tensor.byteSize() - moved;
    }

    /**
     * Keeps the tensor's memory for the life of the process, because the transport may still access
     * it.
     */
    public void leak() {
        tensor.leak();
    }

    /** Counts bytes that have moved. */
    public void advance(long size) {
        moved += size;
    }

    /** {@return whether all bytes have moved} */
    public boolean isMoved() {
        return moved == tensor.byteSize();
    }

    /** Ends the message and frees its tensor; {@link #complete()} then completes the work. */
    void end(CollectiveException failure) {
        ended = true;
        reason = failure;
        try {
            try {
                if (failure == null) {
                    tensor.flush();
                }
            } finally {
                tensor.close();
            }
        } catch (RuntimeException | Error e) {
            // Freeing a tensor's memory may run the caller's code.
            reason = GroupErrors.failed(operation(), e);
        }
    }

    boolean hasEnded() {
        return ended;
    }

    /** Completes the work with the message's outcome. */
    void complete() {
        complete(reason);
    }

    /** Returns the time until the operation's timeout in ns. */
    long nanosLeft() {
        return operation().timeout().toNanos() - (System.nanoTime() - begin);
    }

    @Override
    public void await() {
        queue.await(this);
        rethrow();
    }

    @Override
    void expedite() {
        queue.expedite();
    }

    @Override
    public int sourceRank() {
        return sends || !isSuccess() ? super.sourceRank() : peer;
    }
}
