// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import ai.djl.ndarray.NDArray;
import java.util.ArrayList;
import java.util.List;
import org.djlx.collectives.p2p.P2pStream;
import org.djlx.collectives.spi.Operation;
import org.djlx.nativeops.cuda.CudaEvent;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.host.Required;

/**
 * A stream for P2P operations: the caller's current stream, or the group's side stream. All
 * operations reuse it and its events. An event can be recorded again once the host has enqueued the
 * previous operation: a stream that waits for an event waits for the record enqueued before the
 * wait.
 */
final class CudaP2pStream implements P2pStream {

    private final CudaP2pBuffers buffers;
    private final List<StreamEvent> events = new ArrayList<>();
    private CudaStream stream;
    private Operation operation;
    private int used; // events that the current operation has recorded
    private boolean ordered; // later work runs after the entry into the operation
    private long works; // that were enqueued, in all operations
    private long joined; // of these, how many the other stream has waited for

    CudaP2pStream(CudaP2pBuffers buffers) {
        this.buffers = buffers;
    }

    /**
     * Begins an operation on a stream. An ordered stream is the current one, on which the operation
     * is entered. The side stream is ordered after the entry by an event that it waits for, or else
     * by its first use.
     */
    CudaP2pStream on(CudaStream stream, Operation operation, boolean ordered) {
        this.stream = stream;
        this.operation = operation;
        used = 0;
        this.ordered = ordered;
        return this;
    }

    private static final class StreamEvent implements Event {

        final CudaP2pStream owner;
        final CudaEvent event;
        boolean entered; // recorded after the entry into the operation
        long works; // of the owner, before the record

        StreamEvent(CudaP2pStream owner, CudaEvent event) {
            this.owner = owner;
            this.event = event;
        }
    }

    /** Returns whether later work runs after the entry into the operation. */
    boolean isOrdered() {
        return ordered;
    }

    private void order() {
        works++;
        if (!ordered) {
            ordered = true;
            buffers.orderSideStream();
        }
    }

    @Override
    public void put(int rank, long offset, long source, long byteSize) {
        order();
        stream.copyAsync(buffers.address(stream, rank, offset, byteSize), source, byteSize);
    }

    @Override
    public void copy(long destination, long source, long byteSize) {
        order();
        stream.copyAsync(destination, source, byteSize);
    }

    @Override
    public void signal(int rank, int channel, long epoch) {
        order();
        buffers.putSignal(stream, rank, channel, epoch);
    }

    @Override
    public void waitSignal(int rank, int channel, long epoch) {
        order();
        buffers.waitSignal(stream, operation, rank, channel, epoch);
    }

    @Override
    public void waitSignals(int channel, long epoch) {
        order();
        buffers.waitSignals(stream, operation, channel, epoch);
    }

    @Override
    public void barrier() {
        order();
        buffers.barrier(stream, operation);
    }

    @Override
    public boolean isRecorded() {
        return buffers.isCapturing();
    }

    @Override
    public void keepAlive(NDArray... arrays) {
        if (isRecorded()) {
            stream.keepAlive(arrays);
        }
    }

    @Override
    public Event record() {
        if (used == events.size()) {
            events.add(new StreamEvent(this, CudaEvent.create(stream.device())));
        }
        StreamEvent event = events.get(used++);
        event.event.record(stream);
        event.works = works;
        event.entered = ordered && buffers.hasEntered();
        return event;
    }

    @Override
    public void waitEvent(Event event) {
        Required.argument("waitEvent: event", event);
        StreamEvent other = (StreamEvent) event;
        stream.waitEvent(other.event);
        ordered |= other.entered;
        if (other.owner != this) {
            other.owner.joined = Math.max(other.owner.joined, other.works);
        }
    }

    /** Lets the other stream wait for all work of this one, unless it already does. */
    void joinInto(CudaStream other) {
        if (joined != works) {
            StreamEvent event = (StreamEvent) record();
            other.waitEvent(event.event);
            joined = works;
        }
    }

    /** No-op because the stream is reused. */
    @Override
    public void close() {}

    void free() {
        events.forEach(event -> event.event.close());
    }
}
